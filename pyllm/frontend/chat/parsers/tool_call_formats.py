"""Tool calls behind a marker, in each model's format: a list, one call and its end, a name and arguments."""

import re
from collections.abc import Collection
from typing import Literal

from pyllm.frontend.chat.parsers.parsed_pieces import Piece, ToolArguments, ToolCallBegin, add
from pyllm.frontend.chat.parsers.tool_call_finder import Body
from pyllm.frontend.chat.parsers.tool_call_reader import CallKeys, CallReader
from pyllm.frontend.chat.parsers.values.json_scanner import WHITESPACE, JsonScanner

_KEYS = CallKeys()
_MAX_HEADER = 256
_HEADER = re.compile(r"([\w.\-]+)\s*(\[CALL_ID\]\w+)?\s*(\[ARGS\])?\s*")


class Closed:
    """Calls, and a marker for their end. Calls without it are calls, too."""

    def __init__(self, calls: Body, closing: str) -> None:
        self._calls = calls
        self._closing = closing
        self._closed = 0  # characters of the closing that have come
        self.done = False
        self.broken = False
        self.settled = False

    @property
    def num_calls(self) -> int:
        """How many calls it has given."""
        return self._calls.num_calls

    def step(self, text: str, position: int, pieces: list[Piece]) -> int:
        """Read on."""
        calls = self._calls
        if not calls.done:
            position = calls.step(text, position, pieces)
            self.settled, self.broken = calls.settled, calls.broken
            return position
        self.settled = self._closed == 0 and text[position] in WHITESPACE
        if self.settled:
            return position + 1
        self.broken = text[position] != self._closing[self._closed]
        if self.broken:
            return position
        self._closed += 1
        self.done = self.settled = self._closed == len(self._closing)
        return position + 1

    def finish(self, pieces: list[Piece]) -> None:
        """Give what is known of a call that the end of the sample cuts off."""
        if not self._calls.done:
            self._calls.finish(pieces)
            self.settled = self._calls.settled


class CallList:
    """Calls in a row, in brackets with commas or bare with semicolons (Llama 3). The rest is for `CallReader`."""

    def __init__(
        self,
        first_index: int,
        form: Literal["brackets", "semicolons"],
        names: Collection[str] | None = None,
        keys: CallKeys = _KEYS,
    ) -> None:
        self._next_index = self._first_index = first_index
        self._opener, self._separator, self._closer = ("[", ",", "]") if form == "brackets" else ("", ";", "")
        self._names = names
        self._keys = keys
        self._reader: CallReader | None = None
        self._opened = not self._opener
        self._may_begin = True  # a call may come next
        self.done = False
        self.broken = False
        self.settled = False

    @property
    def num_calls(self) -> int:
        """How many calls it has given."""
        return self._next_index - self._first_index + int(self._reader is not None and self._reader.begun)

    def step(self, text: str, position: int, pieces: list[Piece]) -> int:
        """Read on."""
        if self._reader is not None:
            return self._read(self._reader, text, position, pieces)
        char = text[position]
        self.settled = False
        if char in WHITESPACE:
            self.settled = not self._may_begin
            return position + 1
        if not self._opened:
            self._opened = char == self._opener
            self.broken = not self._opened
        elif self._may_begin:
            self._reader = CallReader(self._next_index, self._names, self._keys)
            return self._read(self._reader, text, position, pieces)
        elif char == self._separator:
            self._may_begin = True
        elif char == self._closer or not self._closer:
            self.done = self.settled = True
            return position + len(self._closer)
        else:
            self.broken = True
        return position if self.broken else position + 1

    def finish(self, pieces: list[Piece]) -> None:
        """Nothing is held back once a call has begun."""

    def _read(self, reader: CallReader, text: str, position: int, pieces: list[Piece]) -> int:
        position = reader.step(text, position, pieces)
        self.settled, self.broken = reader.settled, reader.broken
        if reader.done:
            self._reader, self._may_begin = None, False
            self._next_index += 1
        return position


class NamedCall:
    """Mistral's newer format: `name[ARGS]{...}` or `name{...}`, after the model's `[CALL_ID]`, which is dropped."""

    def __init__(self, first_index: int) -> None:
        self._index = first_index
        self._header = ""
        self._arguments: JsonScanner | None = None
        self.done = False
        self.broken = False
        self.settled = False

    @property
    def num_calls(self) -> int:
        """How many calls it has given."""
        return int(self._arguments is not None)

    def step(self, text: str, position: int, pieces: list[Piece]) -> int:
        """Read on."""
        self.settled = False
        if self._arguments is None:
            if text[position] != "{":
                self._header += text[position]
                self.broken = len(self._header) > _MAX_HEADER or not _may_begin_header(self._header)
                return position if self.broken else position + 1
            match = _HEADER.fullmatch(self._header.lstrip())
            if match is None:
                self.broken = True
                return position
            pieces.append(ToolCallBegin(self._index, match[1]))
            self._arguments = JsonScanner()
        end = self._arguments.scan(text, position)
        add(pieces, ToolArguments(self._index, text[position:end]))
        self.settled = True
        self.done, self.broken = self._arguments.done, self._arguments.broken
        return end

    def finish(self, pieces: list[Piece]) -> None:
        """Nothing is held back once the call has begun."""


def _may_begin_header(text: str) -> bool:
    return all(char.isalnum() or char in "_.-[]" or char in WHITESPACE for char in text)


class MistralCalls:
    """Either of Mistral's formats, by the first character: a list in brackets, or a name."""

    def __init__(self, first_index: int) -> None:
        self._first_index = first_index
        self._form: CallList | NamedCall | None = None

    @property
    def num_calls(self) -> int:
        """How many calls it has given."""
        return 0 if self._form is None else self._form.num_calls

    @property
    def done(self) -> bool:
        """Whether all of it has come."""
        return self._form is not None and self._form.done

    @property
    def broken(self) -> bool:
        """Whether the text cannot go on like this."""
        return self._form is not None and self._form.broken

    @property
    def settled(self) -> bool:
        """Whether what it has read need not be kept."""
        return self._form is not None and self._form.settled

    def step(self, text: str, position: int, pieces: list[Piece]) -> int:
        """Read on."""
        if self._form is None:
            if text[position] in WHITESPACE:
                return position + 1
            is_list = text[position] == "["
            self._form = CallList(self._first_index, "brackets") if is_list else NamedCall(self._first_index)
        return self._form.step(text, position, pieces)

    def finish(self, pieces: list[Piece]) -> None:
        """Nothing is held back once a call has begun."""
