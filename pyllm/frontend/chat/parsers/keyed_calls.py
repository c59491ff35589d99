"""Apertus' tool calls: a list of objects, whose one key is the name: `[{"f": {"city": "Paris"}}]`."""

import json
from collections.abc import Callable

from pyllm.frontend.chat.parsers.json_scanner import JsonScanner
from pyllm.frontend.chat.parsers.parsed_pieces import Piece, ToolArguments, ToolCallBegin, add

_Step = Callable[[str, int, list[Piece]], int]


class KeyedCalls:
    """Calls in brackets."""

    def __init__(self, first_index: int) -> None:
        self._index = self._first_index = first_index
        self._step: _Step = self._expect({"[": self._begin_object})
        self._value = JsonScanner()
        self._key: list[str] = []
        self._begun = False
        self.done = False
        self.broken = False
        self.settled = False

    @property
    def num_calls(self) -> int:
        """How many calls it has given."""
        return self._index - self._first_index + int(self._begun)

    def step(self, text: str, position: int, pieces: list[Piece]) -> int:
        """Read on."""
        self.settled = False
        return self._step(text, position, pieces)

    def finish(self, pieces: list[Piece]) -> None:
        """Nothing is held back once a call has begun."""

    def _expect(self, marks: dict[str, Callable[[], _Step]]) -> _Step:
        """A step that takes one of these characters after any whitespace, and goes on as it says."""

        def step(text: str, position: int, pieces: list[Piece]) -> int:
            del pieces
            char = text[position]
            if char in marks:
                self._step = marks[char]()
            elif not char.isspace():
                self.broken = True
                return position
            return position + 1

        return step

    def _begin_object(self) -> _Step:
        return self._expect({"{": self._begin_key})

    def _begin_key(self) -> _Step:
        self._value, self._key = JsonScanner(), []
        return self._read_key

    def _read_key(self, text: str, position: int, pieces: list[Piece]) -> int:
        del pieces
        if not self._key and text[position].isspace():
            return position + 1
        if not self._key and text[position] != '"':
            self.broken = True
            return position
        end = self._value.scan(text, position)
        self._key.append(text[position:end])
        self.broken = self._value.broken
        if self._value.done:
            self._step = self._expect({":": self._begin_arguments})
        return end

    def _begin_arguments(self) -> _Step:
        self._value = JsonScanner()
        return self._read_arguments

    def _read_arguments(self, text: str, position: int, pieces: list[Piece]) -> int:
        if not self._begun:
            if text[position].isspace():
                return position + 1
            name = json.loads("".join(self._key))
            if text[position] != "{" or not name or not name.isprintable():
                self.broken = True
                return position
            self._begun = True
            pieces.append(ToolCallBegin(self._index, name))
        end = self._value.scan(text, position)
        add(pieces, ToolArguments(self._index, text[position:end]))
        self.settled, self.broken = True, self._value.broken
        if self._value.done:
            self._step = self._expect({"}": self._end_call})
        return end

    def _end_call(self) -> _Step:
        self._begun, self.settled = False, True
        self._index += 1
        return self._expect({",": self._begin_object, "]": self._end})

    def _end(self) -> _Step:
        self.done = self.settled = True
        return self._step
