"""Finds tool calls in a model's text: behind a marker, or at the very beginning. Only a body knows the format."""

import re
from collections.abc import Callable, Sequence
from typing import Protocol

from pyllm.frontend.chat.parsers.parsed_pieces import Content, Piece, ToolArguments, ToolCallBegin, add
from pyllm.frontend.chat.parsers.values.json_scanner import JsonScanner
from pyllm.frontend.chat.parsers.values.markers import MarkerFinder

_SPACE = re.compile(r"\s*")
_OBJECT = "{"


class Body(Protocol):
    """One stretch of a sample's text that holds calls, step by step: see `CallReader`.

    A body that is `broken` does not take the character that broke it; one that is `done` may leave it, too.
    """

    done: bool  # all of it has come
    broken: bool  # the text cannot go on like this
    settled: bool  # nothing of what it has read need be kept, in case that it is broken
    in_arguments: bool  # the arguments of the last call go on: if it is broken, they are what follows

    def step(self, text: str, position: int, pieces: list[Piece]) -> int:
        """Read on from a position in the text; gives the position after what was read."""

    def finish(self, pieces: list[Piece]) -> None:
        """Give what is known of a call that the end of the sample cuts off; then it is `settled`."""


MakeBody = Callable[[int], Body]


class MarkedCalls:
    """Content, and calls in it. Whitespace around calls is dropped.

    What looked like calls and is broken is content, marker and all. Once a call was given this is what follows the
    break; but if its arguments broke, all up to the `closing`, the next call or the end of the sample belongs to these.

    `make_body` makes the body of the calls that are numbered from its argument. A body reads a marker that is `kept`
    itself. The sample may also begin with calls without a marker, if the `opener` is its first character. With
    `make_bare_body` objects may be calls without a marker, too, anywhere but within another object.
    """

    def __init__(
        self,
        markers: Sequence[str],
        make_body: MakeBody,
        *,
        kept: Sequence[str] = (),
        closing: str = "",
        opener: str = "",
        make_bare_body: MakeBody | None = None,
    ) -> None:
        self._kept = frozenset([*kept, *([_OBJECT] if make_bare_body else [])])
        self._finder = MarkerFinder([*markers, *self._kept])
        self._end_finder = MarkerFinder([*markers, *([closing] if closing else [])])  # of arguments that broke
        self._closing = closing
        self._make_body = make_body
        self._make_bare_body = make_bare_body or make_body
        self._opener = opener  # empty once the sample has begun otherwise
        self._blank: list[str] = []  # whitespace before the opener
        self._body: Body | None = None
        self._held: list[str] = []  # in a body, what is not settled
        self._num_introducing = 0  # parts of it that introduce the body
        self._num_calls = 0
        self._after_calls = False
        self._broken_call: int | None = None  # the call whose arguments broke, and go on
        self._is_bare = False  # the body is
        self._object: JsonScanner | None = None  # one that is no call, in the content

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
        text = "".join(self._blank) + self._finder.rest()
        self._blank.clear()
        self._give(text.lstrip() if self._after_calls else text, pieces)
        self._give(self._end_finder.rest(), pieces)
        return pieces

    def _run(self, text: str, pieces: list[Piece]) -> None:
        texts = [(text, 0)]
        while texts:
            text, position = texts.pop()
            while position < len(text):
                if self._object is not None:
                    position = self._in_object(self._object, text, position, pieces)
                    continue
                if self._body is None:
                    position = self._outside(text, position, pieces)
                    continue
                position = self._in_body(self._body, text, position, pieces)
                if self._body is not None and self._body.broken:
                    texts.append((text, position))
                    text, position = self._leave_broken(pieces), 0

    def _outside(self, text: str, position: int, pieces: list[Piece]) -> int:
        """Take text up to a marker; gives the position after it."""
        if self._broken_call is not None:
            return self._find(self._end_finder, text, position, pieces)
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
        return self._find(self._finder, text, position, pieces)

    def _find(self, finder: MarkerFinder, text: str, position: int, pieces: list[Piece]) -> int:
        found = finder.find(text, position)
        self._give(found.text, pieces)
        if found.marker and found.marker == self._closing:
            self._broken_call, self._after_calls = None, True
        elif found.marker:
            self._enter([found.skipped, found.marker], found.marker)
        return found.position

    def _in_object(self, scanner: JsonScanner, text: str, position: int, pieces: list[Piece]) -> int:
        _, end = scanner.read(text, position)
        self._give(text[position:end], pieces)
        if scanner.done or scanner.broken:
            self._object = None
        return end

    def _enter(self, introduction: list[str], marker: str = "") -> None:
        self._is_bare = marker == _OBJECT
        self._body = (self._make_bare_body if self._is_bare else self._make_body)(self._num_calls)
        self._held = introduction
        self._num_introducing = len(introduction)
        position = 0
        while marker in self._kept and position < len(marker):
            position = self._body.step(marker, position, [])

    def _in_body(self, body: Body, text: str, position: int, pieces: list[Piece]) -> int:
        """Let the body take what it can; gives the position after it."""
        while position < len(text) and not (body.done or body.broken):
            begin, num_before = position, len(pieces)
            position = body.step(text, position, pieces)
            self._num_calls += sum(isinstance(piece, ToolCallBegin) for piece in pieces[num_before:])
            if body.settled:
                self._settle()
                self._broken_call = None
            elif position > begin:
                self._held.append(text[begin:position])
        if body.done:
            self._body = None
            self._settle()
            self._after_calls = True
        return position

    def _settle(self) -> None:
        self._held.clear()
        self._num_introducing = 0

    def _leave_broken(self, pieces: list[Piece]) -> str:
        """End a body that is none, or not whole; gives what is to be read again."""
        assert self._body is not None
        introduction, rest = "".join(self._held[: self._num_introducing]), "".join(self._held[self._num_introducing :])
        goes_on = self._body.in_arguments
        self._body = None
        self._settle()
        if goes_on:
            self._broken_call = self._num_calls - 1
        self._give(introduction, pieces)
        if introduction and self._is_bare:
            self._object = JsonScanner()
            self._object.read(_OBJECT)
        self._after_calls = self._num_calls > 0 and not introduction and self._broken_call is None
        return rest

    def _give(self, text: str, pieces: list[Piece]) -> None:
        """More of what stands outside of calls, or of the arguments that broke."""
        broken = self._broken_call
        add(pieces, Content(text) if broken is None else ToolArguments(broken, text))


def _end_of_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    assert match is not None
    return match.end()
