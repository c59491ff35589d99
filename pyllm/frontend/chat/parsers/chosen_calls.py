"""Calls in one of several formats, which the first characters show. Knows none of them."""

from collections.abc import Callable

from pyllm.frontend.chat.parsers.tool_call_finder import Body


class ChosenCalls:
    """A body that `choose` makes as soon as the first characters show the format. Leading whitespace is skipped."""

    def __init__(self, choose: Callable[[str], Body | None]) -> None:
        self._choose = choose
        self._beginning = ""
        self._body: Body | None = None
        self.done = False
        self.broken = False
        self.settled = False
        self.in_arguments = False

    def step(self, text: str, position: int) -> int:
        """Read on."""
        body = self._body
        if body is None:
            if text[position].isspace():
                return position + 1
            body = self._body = self._choose(self._beginning + text[position])
            if body is None:
                self._beginning += text[position]
                return position + 1
            read = 0
            while read < len(self._beginning) and not body.broken:
                read = body.step(self._beginning, read)
        if not body.broken:
            position = body.step(text, position)
        self.done, self.broken = body.done, body.broken
        self.settled, self.in_arguments = body.settled, body.in_arguments
        return position

    def finish(self) -> None:
        """Give the rest of a call that the end of the sample cuts off."""
        if self._body is not None:
            self._body.finish()
            self.settled = self._body.settled
