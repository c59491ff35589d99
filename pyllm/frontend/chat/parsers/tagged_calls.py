"""Tool calls in tags, a pair for each argument, as Qwen3-Coder, GLM 4.5, MiniMax M2 and Seed-OSS write them.

Arguments stand there as they are, unescaped; the tool's schema tells their types.
"""

from collections.abc import Callable
from functools import partial

from pyllm.frontend.chat.parsers.parsed_pieces import MAX_NAME, CallWriter
from pyllm.frontend.chat.parsers.values.argument_tags import Tags
from pyllm.frontend.chat.parsers.values.argument_types import Schema, Schemas, argument_json, property_names, types_of
from pyllm.frontend.chat.parsers.values.json_strings import escaped_json
from pyllm.frontend.chat.parsers.values.markers import LiteralMatcher
from pyllm.frontend.chat.parsers.values.tagged_values import Read, TaggedValue

_TEXT = frozenset({"string"})
_JSON = frozenset({"number", "boolean", "null", "array", "object"})

_Step = Callable[[str, int], int]
_Following = dict[str, Callable[[], None]]


class TaggedCall:
    """Calls up to the `closing` of their section. A call is given once its first key has come, or its end.

    A call may be closed without its own end, also by the `opening` of another section or by another call. An argument
    with malformed tags is dropped.
    """

    def __init__(self, writer: CallWriter, tags: Tags, opening: str, closing: str, schemas: Schemas) -> None:
        self._writer = writer
        self._num_before = writer.num_calls  # calls
        self._tags = tags
        self._opening, self._closing = opening, closing
        self._schemas = schemas
        self._step: _Step = self._read_tag
        self._following: _Following = {}  # the tags that may follow
        self._tag = LiteralMatcher([])
        self._word: list[str] = []  # of a name or a key
        self._name = ""
        self._open = False  # a name has come, and not its call's end
        self._begun = False
        self._in_element = False  # between the tag before a key and the value
        self._key = ""
        self._keys: list[str] = []  # of the arguments that were given
        self._types = _TEXT  # of the value that is read
        self._value: list[str] = []  # unless it is surely a string
        self._drops = False  # the value is that of a malformed element
        self._value_text = TaggedValue(tags, opening, closing)
        self.done = False
        self.broken = False
        self.settled = False
        self.in_arguments = False  # never: the text after a broken element is content
        self._expect_call()

    def step(self, text: str, position: int) -> int:
        """Read on."""
        self.settled = False
        return self._step(text, position)

    def finish(self) -> None:
        """Give the rest of a call that the end of the sample cuts off."""
        if self._begun and self._step == self._read_value:
            rest = self._value_text.finish()
            self._take(rest)
            if not (rest.ended or self._drops or self._types == _TEXT):
                self._give("".join(self._value))
        self.settled = self._writer.num_calls > self._num_before

    def _expect(self, following: _Following) -> None:
        self._step, self._following, self._tag = self._read_tag, following, LiteralMatcher([*following])

    def _read_tag(self, text: str, position: int) -> int:
        char = text[position]
        if char.isspace() and not self._tag.matched:
            self.settled = self._writer.num_calls > self._num_before
            return position + 1
        if not self._tag.take(char):
            if self._in_element or (self._open and self._tag.matched.startswith(self._tags.key_stem)):
                self._drop_argument()
                return position
            self.broken, self.settled = True, False
            return position
        if self._tag.found:
            self._following[self._tag.found]()
        return position + 1

    def _expect_call(self) -> None:
        self.done = False
        if self._tags.before_name:
            self._expect({self._tags.before_name: self._begin_name})
        else:
            self._step = self._read_name

    def _expect_next_call(self) -> None:
        self._expect(
            {
                self._tags.before_name: self._begin_name,
                self._tags.end: self._expect_next_call,  # once more
                self._opening: self._expect_call,
                self._closing: self._close,
            }
        )

    def _begin_name(self) -> None:
        self._step = self._read_name

    def _read_name(self, text: str, position: int) -> int:
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
            self._expect({tags.after_name: self._end_name})
        else:
            self._end_name()
        return position

    def _end_name(self) -> None:
        self._open, self._keys = True, []
        self._expect_key_or_end()

    def _expect_key_or_end(self) -> None:
        tags = self._tags
        self._in_element = False
        others: _Following = {self._opening: self._open_next, tags.before_name: self._begin_next} if self._begun else {}
        ends: _Following = {tags.end: self._end_call, self._closing: self._close}
        self._expect({tags.before_key: self._begin_key, **ends, **others})

    def _begin_key(self) -> None:
        self._in_element = True
        self._step = self._read_key

    def _read_key(self, text: str, position: int) -> int:
        tags, char = self._tags, text[position]
        if char == tags.after_key[0]:
            ends = {tags.text_key: partial(self._end_key, _TEXT), tags.json_key: partial(self._end_key, _JSON)}
            self._expect({tags.after_key: self._end_key, **ends})
            return position
        position = self._read_word(char, position)
        if self.broken:
            self._drop_argument()
        return position

    def _drop_argument(self) -> None:
        """Drop an argument whose key cannot be read, but give its call."""
        self.broken, self.settled = False, True
        self._word.clear()
        self._begin()
        self._read_on(drops=True)

    def _end_key(self, types: frozenset[str] | None = None) -> None:
        """End a key. `types` come from the tag, and hold for a key that the schema does not have."""
        key = self._key = "".join(self._word).strip()
        self._word.clear()
        self._begin()
        self._types = types_of(self._schema, key) if types is None or key in property_names(self._schema) else types
        if self._tags.before_value:
            self._expect({self._tags.before_value: self._begin_value, self._tags.before_key: self._begin_key})
        else:
            self._begin_value()

    @property
    def _schema(self) -> Schema:
        return self._schemas.get(self._name, {})

    def _begin_value(self) -> None:
        self._give(f'{", " if self._keys else ""}"{escaped_json(self._key)}": ')
        self._keys.append(self._key)
        if self._types == _TEXT:
            self._give('"')
        self._read_on(drops=False)

    def _read_on(self, drops: bool) -> None:
        others = [key for key in property_names(self._schema) if key not in self._keys and _may_be_word(key)]
        self._value_text = TaggedValue(self._tags, self._opening, self._closing, others)
        self._in_element, self._drops, self._step = False, drops, self._read_value
        self.settled = True

    def _read_value(self, text: str, position: int) -> int:
        read = self._value_text.read(text, position)
        self._take(read)
        self.settled = True
        return read.position

    def _take(self, read: Read) -> None:
        if not self._drops:
            self._give_value(read.value, read.ended)
        if read.ended:
            self._end_value(read.following)

    def _give_value(self, text: str, ended: bool) -> None:
        if self._types == _TEXT:
            self._give(escaped_json(text) + ('"' if ended else ""))
            return
        self._value.append(text)
        if ended:
            self._give(argument_json("".join(self._value), self._types))
            self._value.clear()

    def _end_value(self, following: str) -> None:
        self._expect_key_or_end()
        position = 0
        while position < len(following) and not self.broken:
            position = self._step(following, position)

    def _end_call(self) -> None:
        self._begin()
        self._give("}")
        self._open = self._begun = False
        self._expect_next_call()

    def _open_next(self) -> None:
        self._end_call()
        self._expect_call()

    def _begin_next(self) -> None:
        self._end_call()
        self._begin_name()

    def _close(self) -> None:
        if self._open:
            self._end_call()
        self._expect_next_call()
        self.done = self.settled = True

    def _begin(self) -> None:
        if not self._begun:
            self._writer.begin(self._name)
            self._give("{")
        self._begun = True

    def _read_word(self, char: str, position: int) -> int:
        self.broken = len(self._word) > MAX_NAME or not _may_be_word(char)
        if not self.broken:
            self._word.append(char)
        return position if self.broken else position + 1

    def _give(self, arguments: str) -> None:
        self.settled = True
        self._writer.give(arguments)


def _may_be_word(text: str) -> bool:
    return len(text) <= MAX_NAME and text.isprintable() and not any(char in text for char in '<>"')
