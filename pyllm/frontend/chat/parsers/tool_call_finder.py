"""Finds tool calls in a model's text: behind a marker, or at the very beginning. Only a body knows the format."""

import re
from collections.abc import Callable, Sequence
from typing import Protocol

from pyllm.frontend.chat.parsers.parsed_pieces import CallWriter, Content, Piece, add
from pyllm.frontend.chat.parsers.values.json_scanner import CLOSERS, WHITESPACE, JsonScanner
from pyllm.frontend.chat.parsers.values.markers import MarkerFinder

_SPACE = re.compile(r"\s*")
_SPACE_AFTER_CALLS = re.compile(r"[\s}\]]*")  # and closing braces and brackets that are too many
_OBJECT = "{"


class Body(Protocol):
    """One stretch of a sample's text that holds calls, step by step: see `CallReader`.

    A body that is `broken` does not take the character that broke it; one that is `done` may leave it, too.
    """

    done: bool  # the whole body has come
    broken: bool  # the text cannot go on like this
    settled: bool  # the text so far need not be kept for the case that the body is broken
    in_arguments: bool  # the last call's arguments are open: if the body is broken, they take the text after it

    def step(self, text: str, position: int) -> int:
        """Read on from a position in the text; gives the position after the text that was read."""

    def finish(self) -> None:
        """Give the rest of a call that the end of the sample cuts off; then the body is `settled`."""


MakeBody = Callable[[CallWriter], Body]


class MarkedCalls:
    """Content, and calls in it. Whitespace around calls is dropped, except before calls between content.

    A text that looked like calls and is broken is content, marker and all. Once a call was given, only the text after
    the break is content, without the `closings`; but broken arguments go on up to a closing, the next call or the end
    of the sample. If they lack only closing braces and brackets there, these are added.

    `make_body` makes a body, which gives its calls to a writer. A body reads a marker that is `kept` itself. The sample
    may also begin with calls without a marker, if the `opener` is its first character. With `make_bare_body` objects
    may be calls without a marker, too, anywhere but within another object.
    """

    def __init__(
        self,
        markers: Sequence[str],
        make_body: MakeBody,
        *,
        kept: Sequence[str] = (),
        closings: Sequence[str] = (),
        opener: str = "",
        make_bare_body: MakeBody | None = None,
    ) -> None:
        self._kept = frozenset([*kept, *([_OBJECT] if make_bare_body else [])])
        self._finder = MarkerFinder([*markers, *self._kept])
        self._closings = [closing for closing in closings if closing]
        self._end_finder = MarkerFinder([*markers, *kept, *self._closings])  # after a break
        self._make_body = make_body
        self._make_bare_body = make_bare_body or make_body
        self._opener = opener  # empty once the sample has begun otherwise
        self._blank: list[str] = []  # whitespace before the opener
        self._body: Body | None = None
        self._held: list[str] = []  # in a body, the text that is not settled
        self._num_introducing = 0  # parts of it that introduce the body
        self._writer = CallWriter()
        self._has_content = False
        self._gap = ""  # whitespace that is due if content follows the calls
        self._after_calls = False
        self._broke = False  # the last body, once a call was given
        self._arguments_go_on = False  # those of the last call, which broke
        self._ends: list[str] = []  # closing braces and brackets, and space, with which they do
        self._is_bare = False  # the body is
        self._object: JsonScanner | None = None  # an object in the content that is no call

    def feed(self, text: str) -> list[Piece]:
        """Content as soon as it cannot be a marker, and calls as their body gives them."""
        self._run(text)
        return self._writer.taken()

    def finish(self) -> list[Piece]:
        """The text that was held back is content, unless there is a call in it."""
        while self._body is not None:
            self._body.finish()
            if self._body.settled:
                self._settle()
            self._run(self._leave_broken())
        text = "".join(self._blank) + self._finder.rest()
        self._blank.clear()
        self._give(text.lstrip() if self._after_calls else text)
        self._give(self._end_finder.rest())
        if any(map(str.strip, self._ends)) and not self._closings:
            self._close_arguments()
        self._writer.give("".join(self._ends))
        return self._writer.taken()

    def _run(self, text: str) -> None:
        texts = [(text, 0)]
        while texts:
            text, position = texts.pop()
            while position < len(text):
                if self._object is not None:
                    position = self._in_object(self._object, text, position)
                    continue
                if self._body is None:
                    position = self._outside(text, position)
                    continue
                position = self._in_body(self._body, text, position)
                if self._body is not None and self._body.broken:
                    texts.append((text, position))
                    text, position = self._leave_broken(), 0

    def _outside(self, text: str, position: int) -> int:
        """Take text up to a marker; gives the position after it."""
        if self._arguments_go_on:
            return self._find(text, position)
        if self._after_calls or self._opener:
            begin, position = position, _end_of_space(text, position, self._after_calls)
            if self._after_calls:
                self._keep_gap(text[begin:position].strip(CLOSERS)[:1])
            else:
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
            if blank:  # may be part of the whitespace before a marker
                self._finder.find(blank, 0)
        return self._find(text, position)

    def _find(self, text: str, position: int) -> int:
        after_break = self._arguments_go_on or (self._broke and self._closings)
        found = (self._end_finder if after_break else self._finder).find(text, position)
        self._give(found.text)
        if found.marker in self._closings:
            self._close_arguments()
            self._after_calls = True
        elif found.marker:
            self._enter([found.skipped, found.marker], found.marker)
        return found.position

    def _in_object(self, scanner: JsonScanner, text: str, position: int) -> int:
        _, end = scanner.read(text, position)
        self._give(text[position:end])
        if scanner.done or scanner.broken:
            self._object = None
        return end

    def _enter(self, introduction: list[str], marker: str = "") -> None:
        self._is_bare = marker == _OBJECT
        self._body = (self._make_bare_body if self._is_bare else self._make_body)(self._writer)
        self._held = introduction
        self._num_introducing = len(introduction)
        position = 0
        while marker in self._kept and position < len(marker):
            position = self._body.step(marker, position)

    def _in_body(self, body: Body, text: str, position: int) -> int:
        """Let the body read as far as it can; gives the position after it."""
        while position < len(text) and not (body.done or body.broken):
            begin, position = position, body.step(text, position)
            if body.settled:
                self._settle()
                self._arguments_go_on = False
                self._ends.clear()
            elif position > begin:
                self._held.append(text[begin:position])
        if body.done:
            self._body, self._broke = None, False
            self._settle()
            self._after_calls = True
        return position

    def _settle(self) -> None:
        if self._num_introducing:
            self._keep_gap(self._held[0])
        self._held.clear()
        self._num_introducing = 0

    def _keep_gap(self, blank: str) -> None:
        """Keep the whitespace before calls, or the first whitespace character behind them if there is none."""
        if self._has_content and not self._gap:
            self._gap = blank

    def _leave_broken(self) -> str:
        """End a body that is broken or cut off; gives the text to be read again."""
        assert self._body is not None
        introduction, rest = "".join(self._held[: self._num_introducing]), "".join(self._held[self._num_introducing :])
        self._arguments_go_on = self._arguments_go_on or self._body.in_arguments
        self._broke = self._broke or (self._writer.num_calls > 0 and not introduction)
        self._body, self._num_introducing = None, 0
        self._settle()
        self._give(introduction)
        if introduction and self._is_bare:
            self._object = JsonScanner()
            self._object.read(_OBJECT)
        self._after_calls = self._writer.num_calls > 0 and not introduction and not self._arguments_go_on
        return rest

    def _give(self, text: str) -> None:
        """Add text outside of calls, or to arguments that broke."""
        if not self._arguments_go_on:
            if text:
                add(self._writer.pieces, Content(self._gap + text))
                self._has_content, self._gap = True, ""
            return
        if self._writer.missing:
            self._ends.append(text)
            if not text.strip(WHITESPACE + CLOSERS):
                return
            text, self._writer.missing = "".join(self._ends), ""
            self._ends.clear()
        self._writer.give(text)

    def _close_arguments(self) -> None:
        """Close arguments that lack only braces and brackets, in place of the closers that they end with."""
        if self._arguments_go_on:
            self._writer.close()
            self._arguments_go_on = False
            self._ends.clear()


def _end_of_space(text: str, position: int, after_calls: bool) -> int:
    match = (_SPACE_AFTER_CALLS if after_calls else _SPACE).match(text, position)
    assert match is not None
    return match.end()
