"""Tool calls written as Python, with keyword arguments: `[f(a=1), g()]`, or a call in each line (Olmo 3)."""

from collections.abc import Callable, Collection
from typing import Literal

from pyllm.frontend.chat.parsers.parsed_pieces import MAX_NAME, CallWriter
from pyllm.frontend.chat.parsers.values.json_strings import escaped_json
from pyllm.frontend.chat.parsers.values.literal_reader import PYTHON, LiteralReader

_Step = Callable[[str, int], int]


class PythonCalls:
    """Calls in a row. With `names` only calls of these are calls.

    A call is given once its first keyword has come, or its end.
    """

    def __init__(
        self, writer: CallWriter, layout: Literal["brackets", "lines"], names: Collection[str] | None = None
    ) -> None:
        self._writer = writer
        self._brackets = layout == "brackets"
        self._names = names
        self._step: _Step = self._open if self._brackets else self._expect_name
        self._word: list[str] = []  # of a name or a key
        self._name = ""
        self._value = LiteralReader(PYTHON)
        self.done = False
        self.broken = False
        self.settled = False
        self.in_arguments = False  # that is, in a call

    def step(self, text: str, position: int) -> int:
        """Read on."""
        self.settled = False
        return self._step(text, position)

    def finish(self) -> None:
        """Give the rest of a call that the end of the sample cuts off."""
        if self.in_arguments and self._step == self._read_value:
            self._give(self._value.rest())
            self.settled = True

    def _open(self, text: str, position: int) -> int:
        if text[position].isspace():
            return position + 1
        if text[position] != "[":
            return self._break(position)
        self._step = self._expect_name
        return position + 1

    def _expect_name(self, text: str, position: int) -> int:
        return self._begin_word(text, position, self._read_name)

    def _read_name(self, text: str, position: int) -> int:
        char = text[position]
        if char == "(":
            self._name = self._taken_word()
            if self._names is not None and self._name not in self._names:
                return self._break(position)
            self._step = self._expect_key_or_end
            return position + 1
        return self._read_word(char, position)

    def _expect_key_or_end(self, text: str, position: int) -> int:
        if text[position] == ")":
            self._begin()
            self._give("{}")
            return self._end_call(position)
        return self._begin_word(text, position, self._read_key)

    def _expect_next_key_or_end(self, text: str, position: int) -> int:
        if text[position] == ")":
            self._give("}")
            return self._end_call(position)
        return self._begin_word(text, position, self._read_key)

    def _read_key(self, text: str, position: int) -> int:
        char = text[position]
        if char.isspace():
            self._step = self._expect_equals
            return position + 1
        if char == "=":
            return self._end_key(position)
        return self._read_word(char, position)

    def _expect_equals(self, text: str, position: int) -> int:
        if text[position].isspace():
            return position + 1
        return self._end_key(position) if text[position] == "=" else self._break(position)

    def _end_key(self, position: int) -> int:
        key = escaped_json(self._taken_word())
        if self.in_arguments:
            self._give(f', "{key}": ')
        else:
            self._begin()
            self._give(f'{{"{key}": ')
        self._value, self._step = LiteralReader(PYTHON), self._read_value
        return position + 1

    def _read_value(self, text: str, position: int) -> int:
        read, position = self._value.read(text, position)
        self._give(read)
        self.broken, self.settled = self._value.broken, not self._value.pending
        if self._value.done:
            self._step, self.settled = self._after_value, True
        return position

    def _after_value(self, text: str, position: int) -> int:
        char = text[position]
        if char == ",":
            self._step = self._expect_next_key_or_end
            return position + 1
        if char == ")":
            self._give("}")
            return self._end_call(position)
        return position + 1 if char.isspace() else self._break(position)

    def _end_call(self, position: int) -> int:
        self.in_arguments = False
        self._step, self.settled = self._after_call, True
        return position + 1

    def _after_call(self, text: str, position: int) -> int:
        char = text[position]
        if char.isspace():
            self.settled = True
            return position + 1
        if not self._brackets:
            if char.isidentifier():
                return self._expect_name(text, position)
            self.done = self.settled = True
            return position
        if char == "]":
            self.done = self.settled = True
        elif char == ",":
            self._step = self._expect_name
        else:
            return self._break(position)
        return position + 1

    def _begin_word(self, text: str, position: int, following: _Step) -> int:
        if text[position].isspace():
            return position + 1
        if not text[position].isidentifier():
            return self._break(position)
        self._step = following
        return self._read_word(text[position], position)

    def _read_word(self, char: str, position: int) -> int:
        if len(self._word) > MAX_NAME or not (char.isalnum() or char in "_.-"):
            return self._break(position)
        self._word.append(char)
        return position + 1

    def _taken_word(self) -> str:
        word = "".join(self._word)
        self._word.clear()
        return word

    def _begin(self) -> None:
        self.in_arguments = True
        self._writer.begin(self._name)

    def _give(self, arguments: str) -> None:
        self.settled = True
        self._writer.give(arguments)

    def _break(self, position: int) -> int:
        self.broken, self.settled = True, False
        return position
