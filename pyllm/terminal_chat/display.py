"""What a conversation shows: answers as they come, and notices. Its interface, and plain text where is no terminal."""

import sys
from typing import Protocol, TextIO

from pyllm.terminal_chat.answer_source import AnswerPiece


class Display(Protocol):
    """Answers between `begin_answer` and `end_answer`, and notices outside of them."""

    def notice(self, text: str) -> None:
        """Say something about the chat."""

    def error(self, text: str) -> None:
        """Say what went wrong."""

    def begin_answer(self) -> None:
        """An answer follows."""

    def add(self, piece: AnswerPiece) -> None:
        """Show more of it."""

    def end_answer(self, summary: str) -> None:
        """Show the rest of it, and how fast it came."""


class PlainDisplay:
    """Answers to `output` as they are, everything else to `notices`; reasoning is left out."""

    def __init__(self, output: TextIO | None = None, notices: TextIO | None = None) -> None:
        self._output = output or sys.stdout
        self._notices = notices or sys.stderr
        self._is_line_open = False

    def notice(self, text: str) -> None:
        """A line."""
        print(text, file=self._notices, flush=True)

    def error(self, text: str) -> None:
        """A line."""
        print(f"pyllm: {text}", file=self._notices, flush=True)

    def begin_answer(self) -> None:
        """Nothing is shown of that."""

    def add(self, piece: AnswerPiece) -> None:
        """Its text, at once."""
        if piece.content:
            self._output.write(piece.content)
            self._output.flush()
            self._is_line_open = not piece.content.endswith("\n")

    def end_answer(self, summary: str) -> None:
        """End the line. The figures are left out."""
        del summary
        if self._is_line_open:
            self._output.write("\n")
            self._output.flush()
            self._is_line_open = False
