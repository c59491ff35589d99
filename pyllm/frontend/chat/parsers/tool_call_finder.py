"""Finds tool calls in a model's text: behind a marker, or at the very beginning. Only a body knows the format."""

from collections.abc import Callable
from typing import Protocol

from pyllm.frontend.chat.parsers.markers import num_held
from pyllm.frontend.chat.parsers.parsed_pieces import Content, Piece, add


class Body(Protocol):
    """One stretch of a sample's text that holds calls, step by step: see `CallReader`, which most of them are made of.

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


class MarkedCalls:
    """Content, and calls in it. Whitespace around calls is dropped.

    What looked like calls and is broken is content, marker and all; once a call was given this is what follows the
    break. `make_body` makes the body of the calls that are numbered from its argument. `opener` is a character that
    begins a body without a marker, at the beginning of the sample.
    """

    def __init__(self, marker: str, make_body: Callable[[int], Body], opener: str = "") -> None:
        self._marker = marker
        self._make_body = make_body
        self._opener = opener  # empty once the sample has begun otherwise
        self._body: Body | None = None
        self._held = ""  # Content that may precede a marker; or, in a body, what is not settled.
        self._num_introducing = 0  # characters of it that introduce the body
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
            self._run(self._leave_broken(pieces), pieces)
        content = self._held.lstrip() if self._after_calls else self._held
        add(pieces, Content(content))
        self._held = ""
        return pieces

    def _run(self, text: str, pieces: list[Piece]) -> None:
        while text:
            text = self._in_content(text, pieces) if self._body is None else self._in_body(self._body, text, pieces)

    def _in_content(self, text: str, pieces: list[Piece]) -> str:
        """Take the text up to a marker; gives the rest."""
        text, self._held = self._held + text, ""
        if self._after_calls:
            text = text.lstrip()
            self._after_calls = not text
        if self._opener:
            blank = len(text) - len(text.lstrip())
            if blank == len(text):
                self._held = text
                return ""
            opens, self._opener = text[blank] == self._opener, ""
            if opens:
                self._enter(text[:blank])
                return text[blank:]
        position = text.find(self._marker) if self._marker else -1
        if position < 0:
            position = len(text) - num_held(text, self._marker)
            add(pieces, Content(text[:position]))
            self._held = text[position:]
            return ""
        content = text[:position].rstrip()
        add(pieces, Content(content))
        position += len(self._marker)
        self._enter(text[len(content) : position])
        return text[position:]

    def _enter(self, introduction: str) -> None:
        self._body = self._make_body(self._num_calls)
        self._held = introduction
        self._num_introducing = len(introduction)

    def _in_body(self, body: Body, text: str, pieces: list[Piece]) -> str:
        """Let the body take what it can; gives the rest."""
        position = 0
        while position < len(text) and not (body.done or body.broken):
            begin, position = position, body.step(text, position, pieces)
            if body.settled:
                self._held, self._num_introducing = "", 0
            else:
                self._held += text[begin:position]
        rest = text[position:]
        if body.broken:
            return self._leave_broken(pieces) + rest
        if body.done:
            self._leave(body)
            self._held, self._after_calls = "", True
        return rest

    def _leave_broken(self, pieces: list[Piece]) -> str:
        """End a body that is none; gives what is to be read again as content."""
        assert self._body is not None
        text, num_introducing = self._held, self._num_introducing
        self._leave(self._body)
        self._held, self._num_introducing = "", 0
        add(pieces, Content(text[:num_introducing]))
        self._after_calls = self._num_calls > 0 and num_introducing == 0
        return text[num_introducing:]

    def _leave(self, body: Body) -> None:
        self._num_calls += body.num_calls
        self._body = None
