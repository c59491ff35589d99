"""gpt-oss' answers: messages in channels that their headers name. Knows no tokens, and no tool's schema.

`<|channel|>analysis<|message|>` is reasoning, `commentary to=functions.f` a call of `f`, all else content. The prompt
ends with `<|start|>assistant`, so the first header has no start.
"""

import re
from typing import Literal

from pyllm.frontend.chat.parsers.parsed_pieces import Content, Piece, Reasoning, ToolArguments, ToolCallBegin, add
from pyllm.frontend.chat.parsers.values.json_scanner import CLOSERS, WHITESPACE
from pyllm.frontend.chat.parsers.values.json_strings import ObjectScanner
from pyllm.frontend.chat.parsers.values.markers import MarkerFinder

HARMONY_START, HARMONY_CHANNEL, HARMONY_MESSAGE, HARMONY_CONSTRAIN = (
    "<|start|>",
    "<|channel|>",
    "<|message|>",
    "<|constrain|>",
)
HARMONY_END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
HARMONY_STOPS = (CALL, RETURN)  # tokens that end a turn

_HEADER_BEGINS = (HARMONY_START, HARMONY_CHANNEL, HARMONY_CONSTRAIN, HARMONY_MESSAGE, "to=")
_MAX_HEADER = 512
_CHANNEL_NAME = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")

_Kind = Literal["reasoning", "content", "call"]


class HarmonyParser:
    """The messages of one answer; those of one kind are separated by a line break.

    Text outside of messages is content. Without `calls` a message to a tool is content, header and all. A call is given
    with the first character of its arguments, or with its end; a call that is cut off earlier is dropped.
    """

    def __init__(self, calls: bool = True) -> None:
        self.reasoning_end: int | None = None  # in characters, once the first message without reasoning begins
        self._calls = calls
        self._header: str | None = ""  # the header so far; None within a message
        self._kind: _Kind = "content"
        self._finder = MarkerFinder((HARMONY_END, CALL, RETURN, HARMONY_START, HARMONY_CHANNEL), strips=False)
        self._num_calls = 0
        self._name = ""  # of the call that is open, until it is given
        self._arguments: ObjectScanner | None = None  # of that call, unless they may be no JSON
        self._raw = ""  # the arguments so far, before their object begins
        self._ends = ""  # closing braces and brackets behind it, and space
        self._given: set[_Kind] = set()
        self._separates = False  # a line break precedes the message's text
        self._num_read = 0  # characters before the piece that is read
        self._end = 0  # of the last message, in characters

    def feed(self, text: str) -> list[Piece]:
        """All text of messages so far, except a possible beginning of an end marker."""
        pieces: list[Piece] = []
        position = 0
        while position < len(text):
            if self._header is None:
                position = self._in_message(text, position, pieces)
            else:
                position = self._in_header(text, position, pieces)
        self._num_read += len(text)
        return pieces

    def finish(self) -> list[Piece]:
        """The text that was held back, after the end of the sample. The markup of a lone header is dropped."""
        pieces: list[Piece] = []
        if self._header is None:
            self._give(self._finder.rest(), pieces)
            if self._arguments is not None:
                self._add_arguments(self._arguments.rest(), pieces)
        else:
            text = self._header
            self._begin("content")
            self._give("" if text.lstrip().startswith("<") else text, pieces)
        return pieces

    def _in_header(self, text: str, position: int, pieces: list[Piece]) -> int:
        assert self._header is not None
        self._header += text[position]
        position += 1
        header = self._header.lstrip()
        if header.endswith(HARMONY_MESSAGE):
            self._begin_message(header, pieces)
        elif len(self._header) > _MAX_HEADER or not _may_be_header(header):
            text = self._header
            self._begin("content")
            self._give(text, pieces)
        return position

    def _begin_message(self, header: str, pieces: list[Piece]) -> None:
        channel, recipient = _CHANNEL_NAME.search(header), _RECIPIENT.search(header)
        name = "" if recipient is None else recipient[1].removeprefix("functions.")
        if name and name not in ("assistant", "user") and self._calls:
            self._begin("call")
            is_function = recipient is not None and recipient[1].startswith("functions.")
            self._name, self._raw, self._ends = name, "", ""
            self._arguments = ObjectScanner() if is_function else None
        elif channel is not None and channel[1] == "analysis" and not name:
            self._begin("reasoning")
        else:
            self._begin("content")
            if name:
                self._give(header, pieces)

    def _begin(self, kind: _Kind) -> None:
        if kind != "reasoning" and self.reasoning_end is None:
            self.reasoning_end = self._end
        self._separates = kind in self._given and kind != "call"
        self._header, self._kind, self._arguments = None, kind, None

    def _in_message(self, text: str, position: int, pieces: list[Piece]) -> int:
        found = self._finder.find(text, position)
        self._give(found.text, pieces)
        if found.marker:
            self._end_message(found.marker, pieces)
            self._header = found.marker if found.marker in (HARMONY_START, HARMONY_CHANNEL) else ""
            self._end = self._num_read + found.position - len(self._header)
        return found.position

    def _give(self, text: str, pieces: list[Piece]) -> None:
        if not text:
            return
        if self._kind == "call":
            self._add_arguments(self._mended(text), pieces)
            return
        if self._separates:
            text = f"\n{text}"
            self._separates = False
        self._given.add(self._kind)
        add(pieces, Reasoning(text) if self._kind == "reasoning" else Content(text))

    def _mended(self, text: str) -> str:
        """More of the arguments: mended if they are an object or a string with one, else as they are.

        Closing braces and brackets that are too many are dropped.
        """
        arguments = self._arguments
        if arguments is None:
            return text
        if not arguments.is_open:
            text = text if self._raw else text.lstrip()
            self._raw += text
        if not text:
            return ""
        read, end = arguments.read(text, 0)
        if arguments.is_open:
            behind = self._ends + text[end:]
            is_slip = arguments.done and arguments.is_whole and not behind.strip(WHITESPACE + CLOSERS)
            self._ends = behind if is_slip else ""
            return read if is_slip else read + behind
        if not arguments.broken:
            return ""
        self._arguments = None
        return self._raw

    def _add_arguments(self, text: str, pieces: list[Piece]) -> None:
        if text and self._name:
            pieces.append(ToolCallBegin(self._num_calls, self._name))
            self._name = ""
            self._num_calls += 1
        add(pieces, ToolArguments(self._num_calls - 1, text))

    def _end_message(self, marker: str, pieces: list[Piece]) -> None:
        if self._kind != "call":
            return
        if self._arguments is not None:
            missing = self._arguments.missing if marker == CALL and not self._arguments.broken else ""
            self._add_arguments(self._arguments.rest() + missing, pieces)
        if self._name and marker == CALL:
            self._add_arguments(self._raw or "{}", pieces)


def _may_be_header(header: str) -> bool:
    return any(header.startswith(begin[: len(header)]) for begin in _HEADER_BEGINS)
