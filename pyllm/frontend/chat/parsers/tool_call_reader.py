"""Reads one tool call as most models write it: `{"name": ..., "arguments": {...}}`. Does not know what surrounds it."""

import json
from collections.abc import Callable, Collection
from typing import NamedTuple

from pyllm.frontend.chat.parsers.parsed_pieces import Piece, ToolArguments, ToolCallBegin, add
from pyllm.frontend.chat.parsers.values.json_scanner import WHITESPACE, JsonScanner


class CallKeys(NamedTuple):
    """The keys of a call's object."""

    name: str = "name"
    arguments: tuple[str, ...] = ("arguments", "parameters")


_KEYS = CallKeys()

_Step = Callable[[str, int, list[Piece]], int]


class CallReader:
    """Gives the call as soon as it has a name and arguments, in either order, and then each character of these.

    Other members of the object are read and left out; a call without arguments has `{}`. Whoever steps through the text
    keeps what is not `settled`, for the case that the reader is `broken` and the text was no call.

    With `names` only what begins with one of these and goes on with arguments is a call.
    """

    __slots__ = (
        *("_held", "_index", "_key", "_keys", "_name", "_names", "_raw", "_step", "_value"),
        *("begun", "broken", "done", "settled"),
    )

    def __init__(self, index: int, names: Collection[str] | None = None, keys: CallKeys = _KEYS) -> None:
        self.begun = False  # the call was given
        self.done = False
        self.broken = False
        self.settled = False  # all that was read up to here has become pieces, or is nothing but their form
        self._index = index
        self._names = names
        self._keys = keys
        self._step: _Step = self._open
        self._name = ""
        self._held: list[str] | None = None  # arguments that came before the name
        self._key = ""
        self._raw: list[str] = []  # of a key or a name
        self._value = JsonScanner()

    @property
    def num_calls(self) -> int:
        """How many calls it has given."""
        return int(self.begun)

    def finish(self, pieces: list[Piece]) -> None:
        """Nothing is held back once the call has begun."""

    def step(self, text: str, position: int, pieces: list[Piece]) -> int:
        """Read on from a position in the text; gives the next one, or the same if the text there is `broken`."""
        self.settled = False
        return self._step(text, position, pieces)

    def _open(self, text: str, position: int, pieces: list[Piece]) -> int:
        del pieces
        return self._mark(text, position, {"{": self._expect_key_or_end})

    def _expect_key_or_end(self, text: str, position: int, pieces: list[Piece]) -> int:
        if text[position] == "}":
            return self._close(position, pieces)
        return self._expect_key(text, position, pieces)

    def _expect_key(self, text: str, position: int, pieces: list[Piece]) -> int:
        if text[position] in WHITESPACE:
            return position + 1
        if text[position] != '"':
            return self._break(position)
        self._value, self._raw, self._step = JsonScanner(), [], self._read_key
        return self._read_key(text, position, pieces)

    def _read_key(self, text: str, position: int, pieces: list[Piece]) -> int:
        del pieces
        end = self._scan(text, position)
        if self._value.done:
            self._key, self._step = json.loads("".join(self._raw)), self._expect_colon
        return end

    def _expect_colon(self, text: str, position: int, pieces: list[Piece]) -> int:
        del pieces
        return self._mark(text, position, {":": self._expect_value})

    def _expect_value(self, text: str, position: int, pieces: list[Piece]) -> int:
        char = text[position]
        if char in WHITESPACE:
            return position + 1
        self._value, self._raw = JsonScanner(), []
        if (
            self._names is not None
            and not self.begun
            and self._key not in (self._keys.arguments if self._name else (self._keys.name,))
        ):
            return self._break(position)
        if self._key == self._keys.name:
            if char != '"' or self._name:
                return self._break(position)
            self._step = self._read_name
        elif self._key in self._keys.arguments:
            if char != "{" or self.begun or self._held is not None:
                return self._break(position)
            if self._name:
                self._begin(pieces)
            self._step = self._read_arguments
        else:
            self._step = self._read_other
        return self._step(text, position, pieces)

    def _read_name(self, text: str, position: int, pieces: list[Piece]) -> int:
        end = self._scan(text, position)
        if self._value.done:
            self._name, self._step = json.loads("".join(self._raw)), self._expect_more
            if not self._name or not self._name.isprintable():  # Half of a surrogate pair could not be sent, either.
                return self._break(position)
            if self._names is not None and self._name not in self._names:
                return self._break(position)
            if self._held is not None:
                self._begin(pieces)
                self._give("".join(self._held), pieces)
        return end

    def _read_arguments(self, text: str, position: int, pieces: list[Piece]) -> int:
        end = self._value.scan(text, position)
        if self.begun:
            self._give(text[position:end], pieces)
        else:
            self._held = self._held or []
            self._held.append(text[position:end])
        if self._value.broken:
            self.broken = True
        elif self._value.done:
            self._step = self._expect_more
        return end

    def _read_other(self, text: str, position: int, pieces: list[Piece]) -> int:
        del pieces
        end = self._value.scan(text, position)
        self.broken = self._value.broken
        if self._value.done:
            self._step = self._expect_more
        return end

    def _expect_more(self, text: str, position: int, pieces: list[Piece]) -> int:
        if text[position] == "}":
            return self._close(position, pieces)
        return self._mark(text, position, {",": self._expect_key})

    def _scan(self, text: str, position: int) -> int:
        end = self._value.scan(text, position)
        self._raw.append(text[position:end])
        self.broken = self._value.broken
        return end

    def _mark(self, text: str, position: int, marks: dict[str, _Step]) -> int:
        char = text[position]
        if char in WHITESPACE:
            return position + 1
        if char not in marks:
            return self._break(position)
        self._step = marks[char]
        return position + 1

    def _close(self, position: int, pieces: list[Piece]) -> int:
        if not self._name or (self._names is not None and not self.begun):
            return self._break(position)
        if not self.begun:
            self._begin(pieces)
            self._give("{}", pieces)
        self.done = self.settled = True
        return position + 1

    def _begin(self, pieces: list[Piece]) -> None:
        self.begun = True
        pieces.append(ToolCallBegin(self._index, self._name))

    def _give(self, arguments: str, pieces: list[Piece]) -> None:
        self.settled = True
        add(pieces, ToolArguments(self._index, arguments))

    def _break(self, position: int) -> int:
        self.broken = True
        return position
