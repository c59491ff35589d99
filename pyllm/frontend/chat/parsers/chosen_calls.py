"""Calls in one of several forms, which the first characters show; and calls that follow each other bare."""

from collections.abc import Callable

from pyllm.frontend.chat.parsers.parsed_pieces import Piece
from pyllm.frontend.chat.parsers.tool_call_finder import Body
from pyllm.frontend.chat.parsers.tool_call_reader import CallReader


class ChosenCalls:
    """Another body, which `choose` gives once the characters that have come show it: all but whitespace."""

    def __init__(self, choose: Callable[[str], Body | None]) -> None:
        self._choose = choose
        self._beginning = ""
        self._body: Body | None = None

    @property
    def num_calls(self) -> int:
        """How many calls it has given."""
        return 0 if self._body is None else self._body.num_calls

    @property
    def done(self) -> bool:
        """Whether all of it has come."""
        return self._body is not None and self._body.done

    @property
    def broken(self) -> bool:
        """Whether the text cannot go on like this."""
        return self._body is not None and self._body.broken

    @property
    def settled(self) -> bool:
        """Whether what it has read need not be kept."""
        return self._body is not None and self._body.settled

    def step(self, text: str, position: int, pieces: list[Piece]) -> int:
        """Read on."""
        if self._body is not None:
            return self._body.step(text, position, pieces)
        if text[position].isspace():
            return position + 1
        body = self._choose(self._beginning + text[position])
        if body is None:
            self._beginning += text[position]
            return position + 1
        self._body, read = body, 0
        while read < len(self._beginning) and not body.broken:
            read = body.step(self._beginning, read, pieces)
        return position if body.broken else body.step(text, position, pieces)

    def finish(self, pieces: list[Piece]) -> None:
        """Give what is known of a call that the end of the sample cuts off."""
        if self._body is not None:
            self._body.finish(pieces)


class BareCalls:
    """Objects of calls in a row, with nothing but whitespace between them."""

    def __init__(self, first_index: int) -> None:
        self._index = self._first_index = first_index
        self._reader: CallReader | None = None  # of the call that has begun
        self.done = False
        self.broken = False
        self.settled = False

    @property
    def num_calls(self) -> int:
        """How many calls it has given."""
        return self._index - self._first_index + (0 if self._reader is None else self._reader.num_calls)

    def step(self, text: str, position: int, pieces: list[Piece]) -> int:
        """Read on."""
        if self._reader is None:
            has_calls = self._index > self._first_index
            if text[position].isspace():
                self.settled = has_calls
                return position + 1
            if text[position] != "{":
                self.done, self.broken, self.settled = has_calls, not has_calls, has_calls
                return position
            self._reader = CallReader(self._index)
        reader = self._reader
        position = reader.step(text, position, pieces)
        self.settled, self.broken = reader.settled, reader.broken
        if reader.done:
            self._reader = None
            self._index += 1
        return position

    def finish(self, pieces: list[Piece]) -> None:
        """Give what is known of a call that the end of the sample cuts off."""
        if self._reader is not None:
            self._reader.finish(pieces)
