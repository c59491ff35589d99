"""Tool calls whose name stands in a header, as Kimi K2, DeepSeek V3 and Functionary write them.

`<begin>name<before arguments>{...}<end>`, often several within a section. Knows no marker that introduces them.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

from pyllm.frontend.chat.parsers.parsed_pieces import MAX_NAME, CallWriter
from pyllm.frontend.chat.parsers.values.json_scanner import CLOSERS
from pyllm.frontend.chat.parsers.values.json_strings import ObjectScanner
from pyllm.frontend.chat.parsers.values.markers import LiteralMatcher, MarkerFinder


class HeaderTags(NamedTuple):
    """The tags around a header and its arguments. The first group of the pattern `name`, for the header, is the name.

    Without a `closing` there is no section, and only one call.
    """

    begin: str
    before_arguments: str
    end: str
    closing: str
    name: re.Pattern[str] = re.compile(r"\s*(\S+)\s*")


KIMI = HeaderTags(
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
    re.compile(r"\s*(?:functions\.)?(\S+?)(?::\d+)?\s*"),
)
# DeepSeek's bars are fullwidth, and its spaces are SentencePiece's.
_DEEPSEEK_BEGIN, _DEEPSEEK_SEPARATOR, _DEEPSEEK_END, _DEEPSEEK_CLOSING = (
    f"<\uff5ctool\u2581{word}\uff5c>" for word in ("call\u2581begin", "sep", "call\u2581end", "calls\u2581end")
)
DEEPSEEK_OPENING = "<\uff5ctool\u2581calls\u2581begin\uff5c>"
DEEPSEEK_V31 = HeaderTags(_DEEPSEEK_BEGIN, _DEEPSEEK_SEPARATOR, _DEEPSEEK_END, _DEEPSEEK_CLOSING)
DEEPSEEK_V3 = HeaderTags(
    _DEEPSEEK_BEGIN,
    "```json",
    f"```{_DEEPSEEK_END}",
    _DEEPSEEK_CLOSING,
    re.compile(rf"\s*(?:\w+{_DEEPSEEK_SEPARATOR})?\s*(\S+)\s*"),
)
FUNCTIONARY = HeaderTags("<function=", ">", "</function>", "")

_Step = Callable[[str, int], int]


class HeaderCalls:
    """Calls in a row. A call without its end counts, and so does the last one without the closing."""

    def __init__(self, writer: CallWriter, tags: HeaderTags) -> None:
        self._writer = writer
        self._num_before = writer.num_calls  # calls
        self._tags = tags
        self._literals = LiteralMatcher([tags.begin])
        self._step: _Step = self._expect
        self._header = MarkerFinder((tags.before_arguments,), strips=False)
        self._header_text: list[str] = []
        self._name = ""
        self._arguments = ObjectScanner()
        self.done = False
        self.broken = False
        self.settled = False
        self.in_arguments = False

    def step(self, text: str, position: int) -> int:
        """Read on."""
        self.settled = False
        return self._step(text, position)

    def finish(self) -> None:
        """Give the rest of a call that the end of the sample cuts off."""
        if self.in_arguments:
            self._give(self._arguments.rest())
        self.settled = self.settled or (self._step == self._expect and self._has_calls)

    @property
    def _has_calls(self) -> bool:
        return self._writer.num_calls > self._num_before

    def _expect(self, text: str, position: int) -> int:
        char = text[position]
        if not self._literals.matched and (char.isspace() or (char in CLOSERS and self._has_calls)):
            self.settled = self._has_calls
            return position + 1
        if not self._literals.take(char):
            self.broken = True
            return position
        found = self._literals.found
        if found == self._tags.begin:
            self._step = self._read_header
        elif found == self._tags.end:
            self._end_call()
        elif found:
            self.done = True
        self.settled = bool(found) and self._has_calls
        if found:
            self.in_arguments = False
        return position + 1

    def _read_header(self, text: str, position: int) -> int:
        found = self._header.find(text, position)
        self._header_text.append(found.text)
        if sum(map(len, self._header_text)) > MAX_NAME:
            self.broken = True
            return position
        if found.marker:
            self._step = self._begin
        return found.position

    def _begin(self, text: str, position: int) -> int:
        if text[position].isspace():
            return position + 1
        match = self._tags.name.fullmatch("".join(self._header_text))
        self._header_text.clear()
        if match is None or not match[1].isprintable():
            self.broken = True
            return position
        self._name, self._arguments, self._step = match[1], ObjectScanner(), self._read_arguments
        return self._read_arguments(text, position)

    def _read_arguments(self, text: str, position: int) -> int:
        arguments = self._arguments
        read, end = arguments.read(text, position)
        self.broken = arguments.broken or (arguments.done and not arguments.is_open)
        if arguments.is_open:
            if not self.in_arguments:
                self._writer.begin(self._name)
            self._give(read)
            self._writer.missing = arguments.missing
            self.in_arguments = not (arguments.done and arguments.is_whole)
        if arguments.done and not self.broken:
            others = [self._tags.begin, self._tags.closing] if self._tags.closing else []
            self._literals, self._step = LiteralMatcher([self._tags.end, *others]), self._expect
        return end

    def _end_call(self) -> None:
        if self._tags.closing:
            self._literals = LiteralMatcher([self._tags.begin, self._tags.closing])
        else:
            self.done = True

    def _give(self, arguments: str) -> None:
        self.settled = True
        self._writer.give(arguments)
