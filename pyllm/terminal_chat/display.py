"""A display of a conversation as plain text: answers as they arrive, and notices. It erases nothing."""

import sys
from typing import TextIO

from pyllm.terminal_chat.answers import AnswerPiece
from pyllm.terminal_chat.terminal_text import plain


class PlainDisplay:
    """Writes answers unchanged to `output`, everything else to `notices`; leaves out reasoning and figures.

    `is_terminal` is for a person at a terminal that cannot redraw (`TERM=dumb`): text is only appended, without control
    characters, and reasoning and figures are shown.
    """

    def __init__(self, output: TextIO | None = None, notices: TextIO | None = None, is_terminal: bool = False) -> None:
        self._output = output or sys.stdout
        self._notices = notices or sys.stderr
        self._is_terminal = is_terminal
        self._is_line_open = self._is_reasoning = False

    def notice(self, text: str) -> None:
        """Print the notice on a line."""
        print(plain(text) if self._is_terminal else text, file=self._notices, flush=True)

    def error(self, text: str) -> None:
        """Print the error on a line."""
        self.notice(f"pyllm: {text}")

    def begin_answer(self) -> None:
        """Show nothing."""

    def add(self, piece: AnswerPiece) -> None:
        """Print the text of the piece at once."""
        if piece.reasoning and self._is_terminal:
            self._write(piece.reasoning)
            self._is_reasoning = True
        if piece.content:
            if self._is_reasoning:
                self._end_line()
                self._write("\n")
                self._is_reasoning = False
            self._write(piece.content)

    async def end_answer(self, summary: str) -> None:
        """End the line."""
        self._end_line()
        self._is_reasoning = False
        if summary and self._is_terminal:
            self.notice(summary)

    def _write(self, text: str) -> None:
        self._output.write(plain(text) if self._is_terminal else text)
        self._output.flush()
        self._is_line_open = not text.endswith("\n")

    def _end_line(self) -> None:
        if self._is_line_open:
            self._write("\n")
