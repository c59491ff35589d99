"""Tool calls in tags, a pair for each argument, as Qwen3-Coder, GLM 4.5, MiniMax M2 and Seed-OSS write them.

Arguments stand there as they are, unescaped; the tool's schema tells their types.
"""

from collections.abc import Callable
from typing import NamedTuple

from pyllm.frontend.chat.parsers.argument_types import Schema, Schemas, argument_json, types_of
from pyllm.frontend.chat.parsers.literal_reader import json_text
from pyllm.frontend.chat.parsers.markers import MarkerFinder
from pyllm.frontend.chat.parsers.parsed_pieces import Piece, ToolArguments, ToolCallBegin, add

_MAX_NAME = 256
_TEXT = frozenset({"string"})

_Step = Callable[[str, int, list[Piece]], int]


class Tags(NamedTuple):
    """What stands around a name, a key and a value.

    Without `after_name` a name ends with its line, or before a tag. With `lines` a value stands on lines of its own.
    """

    before_name: str
    after_name: str
    before_key: str
    after_key: str
    before_value: str
    after_value: str
    end: str
    lines: bool = False


QWEN = Tags("<function=", ">", "<parameter=", ">", "", "</parameter>", "</function>", lines=True)
GLM = Tags("", "", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "")
MINIMAX = Tags('<invoke name="', '">', '<parameter name="', '">', "", "</parameter>", "</invoke>")


class TaggedCall:
    """One call. It is given once its first key has come, or its end. `closing` ends what is around it.

    With `several` calls it goes on until the closing. A call may be closed without its own end.
    """

    def __init__(self, index: int, tags: Tags, closing: str, schemas: Schemas, several: bool = False) -> None:
        self._index = self._first_index = index
        self._tags = tags
        self._closing = closing
        self._schemas = schemas
        self._several = several
        self._step: _Step = self._expect
        self._expected: dict[str, Callable[[list[Piece]], None]] = {}
        self._matched = ""  # of one that is expected
        self._word: list[str] = []  # of a name or a key
        self._name = ""
        self._open = False  # a name has come, and not its call's end
        self._begun = False
        self._has_arguments = False
        self._types = _TEXT  # of the value that is read
        self._value: list[str] = []  # unless it is surely a string
        self._value_end = MarkerFinder(())
        self._at_start = False  # of a value
        self.done = False
        self.broken = False
        self.settled = False
        self._expect_call()

    @property
    def num_calls(self) -> int:
        """How many calls it has given."""
        return self._index - self._first_index + int(self._begun)

    @property
    def in_arguments(self) -> bool:
        """What follows a broken element is content."""
        return False

    def step(self, text: str, position: int, pieces: list[Piece]) -> int:
        """Read on."""
        self.settled = False
        return self._step(text, position, pieces)

    def finish(self, pieces: list[Piece]) -> None:
        """Give what is known of a call that the end of the sample cuts off."""
        if self._begun and self._step == self._read_value:
            rest = self._value_end.rest()
            self._give(json_text(rest) if self._types == _TEXT else "".join([*self._value, rest]), pieces)
            self.settled = True

    def _expect(self, text: str, position: int, pieces: list[Piece]) -> int:
        char = text[position]
        if char.isspace() and not self._matched:
            self.settled = self._begun
            return position + 1
        matched = self._matched + char
        if not any(literal.startswith(matched) for literal in self._expected):
            self.broken = True
            return position
        self._matched = matched
        if matched in self._expected:
            self._matched = ""
            self._expected[matched](pieces)
        return position + 1

    def _expect_call(self) -> None:
        if not self._tags.before_name:
            self._step = self._read_name
            return
        self._step = self._expect
        self._expected = {self._tags.before_name: self._begin_name}
        if self._closing and self._index > self._first_index:
            self._expected[self._closing] = self._close

    def _begin_name(self, pieces: list[Piece]) -> None:
        del pieces
        self._step = self._read_name

    def _read_name(self, text: str, position: int, pieces: list[Piece]) -> int:
        del pieces
        tags, char = self._tags, text[position]
        if tags.after_name:
            ends = char == tags.after_name[0]
        else:
            if char.isspace() and not self._word:
                return position + 1
            ends = char.isspace() or char == "<"
        if not ends:
            return self._read_word(char, position)
        self._name = "".join(self._word).strip()
        self._word.clear()
        self.broken = not self._name
        if self.broken:
            return position
        if tags.after_name:
            self._step, self._expected = self._expect, {tags.after_name: self._end_name}
        else:
            self._end_name([])
        return position

    def _end_name(self, pieces: list[Piece]) -> None:
        del pieces
        self._open, self._has_arguments = True, False
        self._expect_key_or_end()

    def _expect_key_or_end(self) -> None:
        tags = self._tags
        self._step, self._expected = self._expect, {tags.before_key: self._begin_key}
        if tags.end:
            self._expected[tags.end] = self._end_call
        if self._closing:
            self._expected[self._closing] = self._close

    def _begin_key(self, pieces: list[Piece]) -> None:
        del pieces
        self._step = self._read_key

    def _read_key(self, text: str, position: int, pieces: list[Piece]) -> int:
        del pieces
        tags, char = self._tags, text[position]
        if char != tags.after_key[0]:
            return self._read_word(char, position)
        self._step, self._expected = self._expect, {tags.after_key: self._end_key}
        return position

    def _end_key(self, pieces: list[Piece]) -> None:
        key = "".join(self._word).strip()
        self._word.clear()
        self._begin(pieces)
        self._give(f'{", " if self._has_arguments else "{"}"{json_text(key)}": ', pieces)
        self._has_arguments = True
        schema: Schema = self._schemas.get(self._name, {})
        self._types = types_of(schema, key)
        if self._tags.before_value:
            self._step, self._expected = self._expect, {self._tags.before_value: self._begin_value}
        else:
            self._begin_value(pieces)

    def _begin_value(self, pieces: list[Piece]) -> None:
        after, lines = self._tags.after_value, self._tags.lines
        self._value_end = MarkerFinder((f"\n{after}", after) if lines else (after,), strips=False)
        self._at_start = lines
        self._step = self._read_value
        if self._types == _TEXT:
            self._give('"', pieces)
        self.settled = True

    def _read_value(self, text: str, position: int, pieces: list[Piece]) -> int:
        if self._at_start and text[position] == "\n":
            self._at_start = False
            # It may still be the one before an end, where there is no value.
            self.settled = True
            return position + 1
        self._at_start = False
        found = self._value_end.find(text, position)
        if self._types == _TEXT:
            self._give(json_text(found.text) + ('"' if found.marker else ""), pieces)
        else:
            self._value.append(found.text)
            if found.marker:
                self._give(argument_json("".join(self._value), self._types), pieces)
                self._value.clear()
        if found.marker:
            self._expect_key_or_end()
        self.settled = True
        return found.position

    def _end_call(self, pieces: list[Piece]) -> None:
        self._begin(pieces)
        self._give("}" if self._has_arguments else "{}", pieces)
        self._open = self._begun = False
        self._index += 1
        if self._several:
            self._expect_call()
        elif self._closing:
            self._expected = {self._closing: self._close}
        else:
            self.done = True

    def _close(self, pieces: list[Piece]) -> None:
        if self._open:
            self._end_call(pieces)
        self.done = self.settled = True

    def _begin(self, pieces: list[Piece]) -> None:
        if not self._begun:
            pieces.append(ToolCallBegin(self._index, self._name))
        self._begun = True

    def _read_word(self, char: str, position: int) -> int:
        self.broken = len(self._word) > _MAX_NAME or not char.isprintable() or char in '<>"'
        if not self.broken:
            self._word.append(char)
        return position if self.broken else position + 1

    def _give(self, arguments: str, pieces: list[Piece]) -> None:
        self.settled = True
        add(pieces, ToolArguments(self._index, arguments))
