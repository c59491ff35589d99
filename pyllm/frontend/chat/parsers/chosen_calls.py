"""Calls in one of several forms, which the first characters show. Knows none of them."""

from collections.abc import Callable

from pyllm.frontend.chat.parsers.parsed_pieces import Piece
from pyllm.frontend.chat.parsers.tool_call_finder import Body


class ChosenCalls:
    """Another body, which `choose` gives once the characters that have come show it: all but whitespace."""

    def __init__(self, choose: Callable[[str], Body | None]) -> None:
        self._choose = choose
        self._beginning = ""
        self._body: Body | None = None

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

    @property
    def in_arguments(self) -> bool:
        """Whether the arguments of the last call go on."""
        return self._body is not None and self._body.in_arguments

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
