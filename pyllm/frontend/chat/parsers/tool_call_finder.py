"""Finds tool calls in a model's text: behind a marker, or at the very beginning. Only a body knows the format."""

import re
from collections.abc import Callable, Sequence
from typing import Protocol

from pyllm.frontend.chat.parsers.parsed_pieces import Content, Piece, add
from pyllm.frontend.chat.parsers.values.markers import MarkerFinder

_SPACE = re.compile(r"\s*")


class Body(Protocol):
    """One stretch of a sample's text that holds calls, step by step: see `CallReader`.

    A body that is `broken` does not take the character that broke it; one that is `done` may leave it, too.
    """

    @property
    def num_calls(self) -> int:
        """How many calls it has given."""

    @property
    def done(self) -> bool:
        """Whether all of it has come."""

    @property
    def broken(self) -> bool:
        """Whether the text cannot go on like this."""

    @property
    def settled(self) -> bool:
        """Whether nothing of what it has read need be kept, in case that it is broken."""

    def step(self, text: str, position: int, pieces: list[Piece]) -> int:
        """Read on from a position in the text; gives the position after what was read."""

    def finish(self, pieces: list[Piece]) -> None:
        """Give what is known of a call that the end of the sample cuts off; then it is `settled`."""


class MarkedCalls:
    """Content, and calls in it. Whitespace around calls is dropped.

    What looked like calls and is broken is content, marker and all; once a call was given this is what follows the
    break. `make_body` makes the body of the calls that are numbered from its argument. A body reads a marker that is
    `kept` itself. `opener` is a character that begins a body without a marker, at the beginning of the sample.
    """

    def __init__(
        self, markers: Sequence[str], make_body: Callable[[int], Body], opener: str = "", kept: Sequence[str] = ()
    ) -> None:
        self._finder = MarkerFinder([*markers, *kept])
        self._kept = frozenset(kept)
        self._make_body = make_body
        self._opener = opener  # empty once the sample has begun otherwise
        self._blank: list[str] = []  # whitespace before the opener
        self._body: Body | None = None
        self._held: list[str] = []  # in a body, what is not settled
        self._num_introducing = 0  # parts of it that introduce the body
        self._num_calls = 0
        self._after_calls = False

    def feed(self, text: str) -> list[Piece]:
        """Content as soon as it is no marker, calls as their body gives them."""
        pieces: list[Piece] = []
        self._run(text, pieces)
        return pieces

    def finish(self) -> list[Piece]:
        """What was held back is content, unless there is a call in it."""
        pieces: list[Piece] = []
        while self._body is not None:
            self._body.finish(pieces)
            if self._body.settled:
                self._settle()
            self._run(self._leave_broken(pieces), pieces)
        content = "".join(self._blank) + self._finder.rest()
        self._blank.clear()
        add(pieces, Content(content.lstrip() if self._after_calls else content))
        return pieces

    def _run(self, text: str, pieces: list[Piece]) -> None:
        texts = [(text, 0)]
        while texts:
            text, position = texts.pop()
            while position < len(text):
                if self._body is None:
                    position = self._in_content(text, position, pieces)
                    continue
                position = self._in_body(self._body, text, position, pieces)
                if self._body is not None and self._body.broken:
                    texts.append((text, position))
                    text, position = self._leave_broken(pieces), 0

    def _in_content(self, text: str, position: int, pieces: list[Piece]) -> int:
        """Take text up to a marker; gives the position after it."""
        if self._after_calls or self._opener:
            begin, position = position, _end_of_space(text, position)
            if not self._after_calls:
                self._blank.append(text[begin:position])
            if position == len(text):
                return position
            self._after_calls = False
            opens, self._opener = bool(self._opener) and text[position] == self._opener, ""
            blank = "".join(self._blank)
            self._blank.clear()
            if opens:
                self._enter([blank])
                return position
            if blank:  # may be part of what precedes a marker
                self._finder.find(blank, 0)
        found = self._finder.find(text, position)
        add(pieces, Content(found.text))
        if found.marker:
            self._enter([found.skipped, found.marker], found.marker if found.marker in self._kept else "")
        return found.position

    def _enter(self, introduction: list[str], first: str = "") -> None:
        self._body = self._make_body(self._num_calls)
        self._held = introduction
        self._num_introducing = len(introduction)
        position = 0
        while position < len(first):
            position = self._body.step(first, position, [])

    def _in_body(self, body: Body, text: str, position: int, pieces: list[Piece]) -> int:
        """Let the body take what it can; gives the position after it."""
        while position < len(text) and not (body.done or body.broken):
            begin, position = position, body.step(text, position, pieces)
            if body.settled:
                self._settle()
            elif position > begin:
                self._held.append(text[begin:position])
        if body.done:
            self._leave(body)
            self._settle()
            self._after_calls = True
        return position

    def _settle(self) -> None:
        self._held.clear()
        self._num_introducing = 0

    def _leave_broken(self, pieces: list[Piece]) -> str:
        """End a body that is none; gives what is to be read again as content."""
        assert self._body is not None
        introduction, rest = "".join(self._held[: self._num_introducing]), "".join(self._held[self._num_introducing :])
        self._leave(self._body)
        self._settle()
        add(pieces, Content(introduction))
        self._after_calls = self._num_calls > 0 and not introduction
        return rest

    def _leave(self, body: Body) -> None:
        self._num_calls += body.num_calls
        self._body = None


def _end_of_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    assert match is not None
    return match.end()
