"""Tool calls behind a marker, in each model's format: a list, one call and its end, a name and arguments."""

import re
from collections.abc import Callable
from typing import Literal

from pyllm.frontend.chat.parsers.chosen_calls import ChosenCalls
from pyllm.frontend.chat.parsers.parsed_pieces import MAX_NAME, CallWriter
from pyllm.frontend.chat.parsers.tool_call_finder import Body
from pyllm.frontend.chat.parsers.tool_call_reader import ANY_CALL, CallReader, CallShape
from pyllm.frontend.chat.parsers.values.json_scanner import CLOSERS, WHITESPACE
from pyllm.frontend.chat.parsers.values.json_strings import ObjectScanner
from pyllm.frontend.chat.parsers.values.literal_reader import LiteralReader, delimited
from pyllm.frontend.chat.parsers.values.markers import LiteralMatcher

_FENCE = "```"
_BEGUN_FENCE = re.compile(r"`{1,3}|```[a-z]{1,9}")
_MISTRAL_HEADER = re.compile(r"\s*([\w.\-]+)\s*(\[CALL_ID\]\w+)?\s*(\[ARGS\])?\s*")
_GEMMA_HEADER = re.compile(r"\s*(?:call:)?+\s*:?+\s*([\w.\-:/]+)\s*")

_ValueReader = ObjectScanner | LiteralReader


class Closed:
    """Calls, and a marker for their end. Calls without it are calls, too."""

    def __init__(self, calls: Body, closing: str) -> None:
        self._calls = calls
        self._closing = LiteralMatcher([closing])
        self.done = False
        self.broken = False
        self.settled = False
        self.in_arguments = False

    def step(self, text: str, position: int) -> int:
        """Read on."""
        calls = self._calls
        if not calls.done:
            position = calls.step(text, position)
            self.settled, self.broken, self.in_arguments = calls.settled, calls.broken, calls.in_arguments
            return position
        self.settled = text[position] in WHITESPACE + CLOSERS and not self._closing.matched
        if self.settled:
            return position + 1
        self.broken = not self._closing.take(text[position])
        self.done = self.settled = bool(self._closing.found)
        return position if self.broken else position + 1

    def finish(self) -> None:
        """Give the rest of a call that the end of the sample cuts off."""
        if not self._calls.done:
            self._calls.finish()
        self.settled = self._calls.done or self._calls.settled


class CallList:
    """Calls in brackets with commas; in a row, apart by space, commas or semicolons; or either, also in a code fence.

    Commas may be missing, and closing braces and brackets too many. `CallReader` reads each call.
    """

    def __init__(
        self, writer: CallWriter, layout: Literal["brackets", "row", "either"], shape: CallShape = ANY_CALL
    ) -> None:
        self._writer = writer
        self._num_before = writer.num_calls  # calls
        self._layout = layout
        self._shape = shape
        self._reader: CallReader | None = None
        self._place: Literal["start", "before", "after"] = "start"  # of all calls, of one, of one
        self._in_brackets = False
        self._fence = ""  # the line that begins it, as far as it has come
        self._num_ticks = 0  # of its end
        self.done = False
        self.broken = False
        self.settled = False
        self.in_arguments = False

    def step(self, text: str, position: int) -> int:
        """Read on."""
        if self._reader is None:
            char = text[position]
            is_space = char in WHITESPACE
            self.settled = is_space and self._place == "after" and not self._num_ticks
            if is_space:
                return position + 1
            if char != "{" or not self._may_begin():
                return self._mark(char, position)
            self._reader = CallReader(self._writer, self._shape)
        return self._read(self._reader, text, position)

    def finish(self) -> None:
        """Give the rest of a call that the end of the sample cuts off."""
        if self._reader is not None:
            self._reader.finish()
            self.settled = self._reader.settled

    def _may_begin(self) -> bool:
        return self._layout != "brackets" if self._place == "start" else not self._num_ticks

    def _mark(self, char: str, position: int) -> int:
        """Read brackets, commas and fences around calls; gives the position after it."""
        has_calls = self._writer.num_calls > self._num_before
        if self._place == "start":
            if char == "[" and self._layout != "row":
                self._in_brackets, self._place = True, "before"
            else:
                self._fence += char
                self.broken = self._layout != "either" or not _BEGUN_FENCE.fullmatch(self._fence)
        elif char in CLOSERS and has_calls and not self._num_ticks:
            self.settled = True
            if char == "]" and self._in_brackets:
                self._in_brackets, self._place = False, "after"
        elif self._place == "after" and not self._num_ticks and char in ("," if self._in_brackets else ",;"):
            self._place = "before"
        elif self._place == "before" or self._in_brackets or (self._num_ticks and char != "`"):
            self.broken = True
        elif self._fence and char == "`":
            self._num_ticks += 1
            self.done = self.settled = self._num_ticks == len(_FENCE)
        else:
            self.done = self.settled = True
            return position
        return position if self.broken else position + 1

    def _read(self, reader: CallReader, text: str, position: int) -> int:
        position = reader.step(text, position)
        self.settled, self.broken, self.in_arguments = reader.settled, reader.broken, reader.in_arguments
        if reader.done:
            self._reader, self._place = None, "after"
        return position


class NamedCall:
    """A name and an object: `f{...}`. `header` matches all that precedes the object; its first group is the name.

    The object begins with one of the `openers`.
    """

    def __init__(
        self, writer: CallWriter, header: re.Pattern[str], openers: str, make_reader: Callable[[], _ValueReader]
    ) -> None:
        self._writer = writer
        self._openers = openers
        self._header = header
        self._header_text = ""
        self._make_reader = make_reader
        self._name = ""
        self._arguments: _ValueReader | None = None  # once they have begun
        self.done = False
        self.broken = False
        self.settled = False
        self.in_arguments = False

    def step(self, text: str, position: int) -> int:
        """Read on."""
        self.settled = False
        if self._arguments is None:
            char = text[position]
            if char not in self._openers:
                self._header_text += char
                may_be_header = char.isalnum() or char.isspace() or char in "_.-:/[]"
                self.broken = len(self._header_text) > MAX_NAME or not may_be_header
                return position if self.broken else position + 1
            match = self._header.fullmatch(self._header_text)
            if match is None:
                self.broken = True
                return position
            self._name = match[1]
            self._arguments = self._make_reader()
        arguments = self._arguments
        read, end = arguments.read(text, position)
        self.done, self.broken = arguments.done and arguments.is_whole, arguments.broken
        if arguments.is_open:
            if not self.in_arguments:
                self._writer.begin(self._name)
            self._writer.give(read)
            self._writer.missing = arguments.missing
            self.settled, self.in_arguments = not arguments.pending, not self.done
        if arguments.done and not self.done:  # a string with less than an object
            self.broken = True
        return end

    def finish(self) -> None:
        """Give the rest of a call that the end of the sample cuts off."""
        if self._arguments is not None and self.in_arguments:
            self._writer.give(self._arguments.rest())
            self.settled = True


def mistral_calls(writer: CallWriter) -> Body:
    """A list in brackets, or a name and arguments: `name[ARGS]{...}` or `name{...}`.

    After a name the model's `[CALL_ID]` may stand, which is dropped.
    """
    return ChosenCalls(
        lambda first: (
            CallList(writer, "brackets") if first == "[" else NamedCall(writer, _MISTRAL_HEADER, '{"', ObjectScanner)
        )
    )


def gemma_call(writer: CallWriter, delimiter: str) -> Body:
    """`call:f{city:<escape>Paris<escape>}`, with this delimiter of strings. Some models leave `call` or `call:` out."""
    return NamedCall(writer, _GEMMA_HEADER, "{", lambda: LiteralReader(delimited(delimiter)))
