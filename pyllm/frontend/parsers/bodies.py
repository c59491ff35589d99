"""What holds calls after a marker, in each model's form: a list, a call and its end, a name and arguments."""

import re
from collections.abc import Collection
from typing import Literal

from pyllm.frontend.parsers.call_reader import CallReader
from pyllm.frontend.parsers.json_scanner import WHITESPACE, JsonScanner
from pyllm.frontend.parsers.pieces import Piece, ToolArguments, ToolCallBegin, add

_MAX_HEADER = 256
_HEADER = re.compile(r"([\w.\-]+)\s*(\[CALL_ID\]\w+)?\s*(\[ARGS\])?\s*")


class ClosedCall:
    """Hermes' form: one call, and a marker for its end."""

    def __init__(self, first_index: int, closing: str) -> None:
        self._reader = CallReader(first_index)
        self._closing = closing
        self._closed = 0  # characters of the closing that have come
        self.done = False
        self.broken = False
        self.settled = False

    @property
    def num_calls(self) -> int:
        """How many calls it has given."""
        return int(self._reader.begun)

    def step(self, text: str, place: int, pieces: list[Piece]) -> int:
        """Read on; a call without its closing is a call, too."""
        reader = self._reader
        if not reader.done:
            place = reader.step(text, place, pieces)
            self.settled, self.broken = reader.settled, reader.broken
            return place
        self.settled = self._closed == 0 and text[place] in WHITESPACE
        if self.settled:
            return place + 1
        self.broken = text[place] != self._closing[self._closed]
        if self.broken:
            return place
        self._closed += 1
        self.done = self.settled = self._closed == len(self._closing)
        return place + 1


class CallList:
    """Calls in a row: in brackets with commas, or bare with semicolons (Llama 3's form). `names` is `CallReader`'s."""

    def __init__(
        self, first_index: int, form: Literal["brackets", "semicolons"], names: Collection[str] | None = None
    ) -> None:
        self._next_index = self._first_index = first_index
        self._opener, self._separator, self._closer = ("[", ",", "]") if form == "brackets" else ("", ";", "")
        self._names = names
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

    def step(self, text: str, place: int, pieces: list[Piece]) -> int:
        """Read on."""
        if self._reader is not None:
            return self._read(self._reader, text, place, pieces)
        char = text[place]
        self.settled = False
        if char in WHITESPACE:
            self.settled = not self._may_begin
            return place + 1
        if not self._opened:
            self._opened = char == self._opener
            self.broken = not self._opened
        elif self._may_begin:
            self._reader = CallReader(self._next_index, self._names)
            return self._read(self._reader, text, place, pieces)
        elif char == self._separator:
            self._may_begin = True
        elif char == self._closer or not self._closer:
            self.done = self.settled = True
            return place + len(self._closer)
        else:
            self.broken = True
        return place if self.broken else place + 1

    def _read(self, reader: CallReader, text: str, place: int, pieces: list[Piece]) -> int:
        place = reader.step(text, place, pieces)
        self.settled, self.broken = reader.settled, reader.broken
        if reader.done:
            self._reader, self._may_begin = None, False
            self._next_index += 1
        return place


class NamedCall:
    """Mistral's newer form: `name[ARGS]{...}` or `name{...}`, with a `[CALL_ID]` of the model's before, which goes."""

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

    def step(self, text: str, place: int, pieces: list[Piece]) -> int:
        """Read on."""
        self.settled = False
        if self._arguments is None:
            if text[place] != "{":
                self._header += text[place]
                self.broken = len(self._header) > _MAX_HEADER or not _may_begin_header(self._header)
                return place if self.broken else place + 1
            match = _HEADER.fullmatch(self._header.lstrip())
            if match is None:
                self.broken = True
                return place
            pieces.append(ToolCallBegin(self._index, match[1]))
            self._arguments = JsonScanner()
        end = self._arguments.scan(text, place)
        add(pieces, ToolArguments(self._index, text[place:end]))
        self.settled = True
        self.done, self.broken = self._arguments.done, self._arguments.broken
        return end


def _may_begin_header(text: str) -> bool:
    return all(char.isalnum() or char in "_.-[]" or char in WHITESPACE for char in text)


class MistralCalls:
    """Either of Mistral's forms, by the first character: a list in brackets, or a name."""

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

    def step(self, text: str, place: int, pieces: list[Piece]) -> int:
        """Read on."""
        if self._form is None:
            if text[place] in WHITESPACE:
                return place + 1
            is_list = text[place] == "["
            self._form = CallList(self._first_index, "brackets") if is_list else NamedCall(self._first_index)
        return self._form.step(text, place, pieces)
