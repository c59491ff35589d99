"""Reads one tool call as most models write it: `{"name": ..., "arguments": {...}}`. Knows no marker around it."""

import json
from collections.abc import Callable, Collection
from typing import NamedTuple

from pyllm.frontend.chat.parsers.parsed_pieces import CallWriter
from pyllm.frontend.chat.parsers.values.json_scanner import WHITESPACE, JsonScanner
from pyllm.frontend.chat.parsers.values.json_strings import ObjectScanner


class CallShape(NamedTuple):
    """The keys of a call's object, and its difference from other objects.

    With `names` only these can be called. With `needs_arguments` an object without them is no call, and only some keys
    may precede the name. `in_order`: the name is first, and the arguments follow. `is_keyed`: the name is the key of
    the arguments, `{"f": {"city": "Paris"}}`.
    """

    name: str = "name"
    arguments: tuple[str, ...] = ("arguments", "parameters")
    names: Collection[str] | None = None
    needs_arguments: bool = False
    in_order: bool = False
    is_keyed: bool = False


ANY_CALL = CallShape()
# The keys that may precede the name of a call that needs arguments: in other objects they are rare.
_BEFORE_NAME = frozenset({"type", "id"})

_Step = Callable[[str, int], int]


class CallReader:
    """Gives the call as soon as it has a name and arguments, in either order, and then each character of these.

    Arguments may be an object, or a string with one. Other members of the call's object are read and left out; a call
    without arguments has `{}`. The caller keeps all text that is not `settled`: if the reader is `broken`, that text
    was no call.
    """

    __slots__ = (
        *("_arguments", "_held", "_key", "_name", "_raw", "_shape", "_step", "_value", "_writer"),
        *("begun", "broken", "done", "in_arguments", "settled"),
    )

    def __init__(self, writer: CallWriter, shape: CallShape = ANY_CALL) -> None:
        self.begun = False  # the call was given
        self.done = False
        self.broken = False
        self.settled = False  # all text up to here has become pieces, or is markup without text of its own
        self.in_arguments = False  # the call was given, and its arguments have not come to their end
        self._writer = writer
        self._shape = shape
        self._step: _Step = self._open
        self._name = ""
        self._held: list[str] | None = None  # arguments that came before the name
        self._key = ""
        self._raw: list[str] = []  # of a key or a name
        self._value = JsonScanner()
        self._arguments = ObjectScanner()

    def finish(self) -> None:
        """Give the rest of a call that the end of the sample cuts off."""
        if self.begun and self._step == self._read_arguments:
            self._give(self._arguments.rest())

    def step(self, text: str, position: int) -> int:
        """Read on from a position in the text; gives the next one, or the same if the text there is `broken`."""
        self.settled = False
        return self._step(text, position)

    def _open(self, text: str, position: int) -> int:
        return self._mark(text, position, {"{": self._expect_key_or_end})

    def _expect_key_or_end(self, text: str, position: int) -> int:
        char = text[position]
        if char in WHITESPACE:
            return position + 1
        if char == "}":
            return self._close(position)
        if char == "{" and self.begun and not self.in_arguments:
            return self._end_early(position)
        if char != '"':
            return self._break(position)
        self._value, self._raw, self._step = JsonScanner(), [], self._read_key
        return self._read_key(text, position)

    def _read_key(self, text: str, position: int) -> int:
        end = self._read(text, position)
        if self._value.done:
            self._key, self._step = json.loads("".join(self._raw)), self._expect_colon
        return end

    def _expect_colon(self, text: str, position: int) -> int:
        return self._mark(text, position, {":": self._expect_value})

    def _expect_value(self, text: str, position: int) -> int:
        char = text[position]
        if char in WHITESPACE:
            return position + 1
        if not self._may_follow(self._key):
            return self._break(position)
        self._value, self._raw = JsonScanner(), []
        if self._shape.is_keyed:
            if self._name or not self._may_be_name(self._key):
                return self._break(position)
            self._name, self._key = self._key, self._shape.arguments[0]
        if self._key == self._shape.name:
            if char != '"' or self._name:
                return self._break(position)
            self._step = self._read_name
        elif self._key in self._shape.arguments and char != "n":
            if self.begun or self._held is not None:
                return self._break(position)
            self._step = self._read_arguments
        else:  # `null` is no arguments.
            self._step = self._read_other
        return self._step(text, position)

    def _may_follow(self, key: str) -> bool:
        """Whether a member with this key may stand here in a call's object."""
        shape = self._shape
        if self.begun or not shape.needs_arguments:
            return True
        if shape.in_order:
            return key in (shape.arguments if self._name else (shape.name,))
        return bool(self._name) or key == shape.name or key in shape.arguments or key in _BEFORE_NAME

    def _read_name(self, text: str, position: int) -> int:
        end = self._read(text, position)
        if self._value.done:
            self._name, self._step = json.loads("".join(self._raw)), self._expect_more
            if not self._may_be_name(self._name):
                return self._break(position)
            if self._held is not None:
                self._begin()
                self._give("".join(self._held))
        return end

    def _may_be_name(self, name: str) -> bool:
        # Half of a surrogate pair is not printable; it could not be sent, either.
        return name.isprintable() and name != "" and (self._shape.names is None or name in self._shape.names)

    def _read_arguments(self, text: str, position: int) -> int:
        arguments = self._arguments
        read, end = arguments.read(text, position)
        self.broken = arguments.broken
        if arguments.is_open and self._name and not self.begun:
            self._begin()
        if self.begun:
            self._give(read)
            self._writer.missing = arguments.missing
        elif arguments.is_open:
            self._held = self._held or []
            self._held.append(read)
        if arguments.done and not self.broken:
            self.in_arguments = self.begun and not arguments.is_whole
            self._step = self._expect_more
        return end

    def _read_other(self, text: str, position: int) -> int:
        _, end = self._value.read(text, position)
        self.broken = self._value.broken
        if self._value.done:
            self._step = self._expect_more
        return end

    def _expect_more(self, text: str, position: int) -> int:
        char = text[position]
        if char == "}":
            return self._close(position)
        if char != "," and char not in WHITESPACE and self.begun and not self.in_arguments:
            return self._end_early(position)
        return self._mark(text, position, {",": self._expect_key_or_end})

    def _end_early(self, position: int) -> int:
        """End a call whose object lacks only its end."""
        self.done = self.settled = True
        return position

    def _read(self, text: str, position: int) -> int:
        read, end = self._value.read(text, position)
        self._raw.append(read)
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

    def _close(self, position: int) -> int:
        if not self._name or (self._shape.needs_arguments and not self.begun):
            return self._break(position)
        if not self.begun:
            self._begin()
            self._give("{}")
        self.done, self.settled, self.in_arguments = True, True, False
        return position + 1

    def _begin(self) -> None:
        self.begun, self.in_arguments = True, not self._arguments.is_whole
        self._writer.begin(self._name)

    def _give(self, arguments: str) -> None:
        self.settled = True
        self._writer.give(arguments)

    def _break(self, position: int) -> int:
        self.broken = True
        return position
