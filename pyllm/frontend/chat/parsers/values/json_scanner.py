"""Follows one JSON value through text that comes in any pieces: where it ends, and where it breaks. Builds nothing."""

import re

WHITESPACE = " \t\n\r"

_STRING_TEXT = re.compile(r'[^"\\\x00-\x1f]*')
_HEX = frozenset("0123456789abcdefABCDEF")
_LITERALS = {"t": "true", "f": "false", "n": "null"}

# What may come next.
_VALUE, _ITEM_OR_END, _KEY_OR_END, _KEY, _COLON, _AFTER, _STRING, _ESCAPE, _LITERAL, _NUMBER = range(10)

_DIGITS, _POSITIVE = "0123456789", "123456789"
# Of a number: what its last character was, and what each next one then is.
_NUMBER_STEPS: dict[str, dict[str, str]] = {
    "-": {"0": "0", **dict.fromkeys(_POSITIVE, "digit")},
    "0": {".": ".", "e": "e", "E": "e"},
    "digit": {".": ".", "e": "e", "E": "e", **dict.fromkeys(_DIGITS, "digit")},
    ".": dict.fromkeys(_DIGITS, "decimal"),
    "decimal": {"e": "e", "E": "e", **dict.fromkeys(_DIGITS, "decimal")},
    "e": {"+": "sign", "-": "sign", **dict.fromkeys(_DIGITS, "exponent")},
    "sign": dict.fromkeys(_DIGITS, "exponent"),
    "exponent": dict.fromkeys(_DIGITS, "exponent"),
}
_NUMBER_ENDS = frozenset({"0", "digit", "decimal", "exponent"})


class JsonScanner:
    """As strict as the standard: no trailing commas, no control characters in strings.

    `done` is set where the value ends, which for a number is before the character after it. `broken` is set before the
    first character that no JSON has there.
    """

    __slots__ = ("_closers", "_in_key", "_number", "_rest", "_state", "broken", "done")

    def __init__(self) -> None:
        self.done = False
        self.broken = False
        self._state = _VALUE
        self._closers: list[str] = []  # of the objects and arrays that are open
        self._in_key = False
        self._number = ""
        self._rest = ""  # of a literal; or as many zeros as an escape still needs digits

    def scan(self, text: str, index: int = 0) -> int:
        """Where in the text the value ends or breaks, or the text's end if it goes on after it."""
        end = len(text)
        while index < end and not (self.done or self.broken):
            index = self._step(text, index)
        return index

    def _step(self, text: str, index: int) -> int:
        state = self._state
        if state == _STRING:
            return self._in_string(text, index)
        char = text[index]
        if state == _NUMBER:
            return self._in_number(char, index)
        if state == _ESCAPE:
            self._in_escape(char)
        elif state == _LITERAL:
            self._in_literal(char)
        elif char in WHITESPACE:
            return index + 1
        elif state == _AFTER:
            self._after_value(char)
        elif state == _COLON:
            self._expect(char == ":", _VALUE)
        elif state in (_KEY, _KEY_OR_END) and char == '"':
            self._state, self._in_key = _STRING, True
        elif (state == _KEY_OR_END and char == "}") or (state == _ITEM_OR_END and char == "]"):
            self._close()
        elif state in (_KEY, _KEY_OR_END):
            self.broken = True
        else:
            self._begin_value(char)
        return index if self.broken else index + 1

    def _begin_value(self, char: str) -> None:
        if char == '"':
            self._state, self._in_key = _STRING, False
        elif char == "{":
            self._closers.append("}")
            self._state = _KEY_OR_END
        elif char == "[":
            self._closers.append("]")
            self._state = _ITEM_OR_END
        elif char in _LITERALS:
            self._state, self._rest = _LITERAL, _LITERALS[char][1:]
        elif char in "-0123456789":
            self._state, self._number = _NUMBER, char if char in "-0" else "digit"
        else:
            self.broken = True

    def _in_string(self, text: str, index: int) -> int:
        match = _STRING_TEXT.match(text, index)
        assert match is not None
        index = match.end()
        if index == len(text):
            return index
        if text[index] == "\\":
            self._state = _ESCAPE
        elif text[index] != '"':
            self.broken = True
            return index
        elif self._in_key:
            self._state = _COLON
        else:
            self._end_value()
        return index + 1

    def _in_escape(self, char: str) -> None:
        if self._rest:
            self._expect(char in _HEX, _ESCAPE if len(self._rest) > 1 else _STRING)
            self._rest = self._rest[1:]
        elif char == "u":
            self._rest = "0000"
        else:
            self._expect(char in '"\\/bfnrt', _STRING)

    def _in_literal(self, char: str) -> None:
        if char != self._rest[0]:
            self.broken = True
            return
        self._rest = self._rest[1:]
        if not self._rest:
            self._end_value()

    def _in_number(self, char: str, index: int) -> int:
        following = _NUMBER_STEPS[self._number].get(char)
        if following is not None:
            self._number = following
            return index + 1
        if self._number in _NUMBER_ENDS:
            self._end_value()
        else:
            self.broken = True
        return index

    def _after_value(self, char: str) -> None:
        if char == self._closers[-1]:
            self._close()
        else:
            self._expect(char == ",", _KEY if self._closers[-1] == "}" else _VALUE)

    def _close(self) -> None:
        self._closers.pop()
        self._end_value()

    def _end_value(self) -> None:
        self._state = _AFTER
        self.done = not self._closers

    def _expect(self, holds: bool, state: int) -> None:
        self._state = state
        self.broken = not holds
