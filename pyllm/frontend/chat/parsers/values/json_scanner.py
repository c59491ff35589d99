"""Follows one JSON value through text that comes in any pieces: where it ends, and where it breaks.

Mistakes of models that a reader can put right are mended on the way. Builds no values.
"""

import json
import re

WHITESPACE = " \t\n\r"
CLOSERS = "}]"  # one more of these, where a value has ended, is a slip

_HEX = "[0-9a-fA-F]"
_PLAIN = r'[^"\\\x00-\x1f]*+'
# Not `*+` around a group: before Python 3.11.5 it keeps what a failed repetition had begun (gh-106052).
_STRING_TEXT = re.compile(rf'{_PLAIN}(?:\\(?:["\\/bfnrt]|u{_HEX}{{4}}){_PLAIN})*')
_WHOLE_ESCAPE = re.compile(rf'\\(?:["\\/bfnrt]|u{_HEX}{{4}})')
_BEGUN_ESCAPE = re.compile(rf"\\(?:u{_HEX}{{0,3}})?")
_LITERALS = {"t": "true", "f": "false", "n": "null"}

# The states: what may come next. After a comma a key or an item may, or the end, for which the comma is dropped.
_VALUE, _ITEM_OR_END, _KEY_OR_END, _COLON, _AFTER, _AFTER_COMMA, _STRING, _ESCAPE, _LITERAL, _NUMBER = range(10)

_DIGITS, _POSITIVE = "0123456789", "123456789"
# Of a number: by the kind of its last character, the kind of each next one.
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
    """A scanner as strict as the standard, but for three mistakes, which it mends: the result is JSON.

    In a string control characters are escaped, and the backslash of an unknown escape is doubled. A comma before the
    end of an object or array is dropped.

    `done` is set where the value ends, which for a number is before the character after it. `broken` is set before the
    first character that cannot be read. The text that was held back is given there.
    """

    __slots__ = ("_begin", "_closers", "_held", "_in_key", "_number", "_read", "_rest", "_state", "broken", "done")

    def __init__(self) -> None:
        self.done = False
        self.broken = False
        self._state = _VALUE
        self._closers: list[str] = []  # of the objects and arrays that are open
        self._in_key = False
        self._number = ""
        self._rest = ""  # of a literal
        self._held = ""  # of earlier texts: a comma and the space after it, or the beginning of an escape
        self._read: list[str] = []  # of this text
        self._begin = 0  # from here on it is neither read nor held yet

    def read(self, text: str, index: int = 0) -> tuple[str, int]:
        """More of the value, and where in the text it ends or breaks, or the text's end if it goes on."""
        end, self._begin = len(text), index
        while index < end and not (self.done or self.broken):
            index = self._step(text, index)
        read = text[self._begin : index]
        if self._state in (_AFTER_COMMA, _ESCAPE) and not self.broken:
            self._held += read
            read = ""
        if self._read:
            read = "".join([*self._read, read])
            self._read.clear()
        return read, index

    @property
    def missing(self) -> str:
        """The text that closes all open objects and arrays, if a value in them has ended; else empty."""
        ended = self._state == _AFTER or (self._state == _NUMBER and self._number in _NUMBER_ENDS)
        return "".join(reversed(self._closers)) if ended else ""

    def rest(self) -> str:
        """The text that was held back, at the end of all text."""
        rest, self._held = self._held, ""
        return rest

    def _step(self, text: str, index: int) -> int:
        state = self._state
        if state == _STRING:
            return self._in_string(text, index)
        if state == _ESCAPE:
            return self._in_escape(text, index)
        char = text[index]
        if state == _NUMBER:
            return self._in_number(char, index)
        if state == _LITERAL:
            self._in_literal(char)
        elif char in WHITESPACE:
            return index + 1
        elif state == _AFTER:
            self._after_value(text, index)
        elif state == _AFTER_COMMA:
            self._after_comma(text, index)
        elif state == _COLON:
            self._expect(char == ":", _VALUE)
        elif state == _KEY_OR_END:
            self._begin_key(char)
        else:
            self._begin_value(char, state == _ITEM_OR_END)
        return index if self.broken else index + 1

    def _begin_key(self, char: str, may_end: bool = True) -> None:
        if char == "}" and may_end:
            self._close()
        else:
            self._in_key = True
            self._expect(char == '"', _STRING)

    def _begin_value(self, char: str, may_end: bool = False) -> None:
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
        elif char == "]" and may_end:
            self._close()
        else:
            self.broken = True

    def _in_string(self, text: str, index: int) -> int:
        match = _STRING_TEXT.match(text, index)
        assert match is not None
        index = match.end()
        if index == len(text):
            return index
        char = text[index]
        if char == "\\":
            self._take(text, index)
            self._state = _ESCAPE
        elif char != '"':
            self._take(text, index)
            self._read.append(json.dumps(char)[1:-1])
            self._begin = index + 1
        elif self._in_key:
            self._state = _COLON
        else:
            self._end_value()
        return index + 1

    def _in_escape(self, text: str, index: int) -> int:
        escape = self._held + text[self._begin : index + 1]
        if _BEGUN_ESCAPE.fullmatch(escape):
            return index + 1
        self._state = _STRING
        if _WHOLE_ESCAPE.fullmatch(escape):
            self._read.append(self.rest())
            return index + 1
        self._read.append("\\" + escape[:-1])
        self._held, self._begin = "", index
        return index

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

    def _after_value(self, text: str, index: int) -> None:
        if text[index] == self._closers[-1]:
            self._close()
        elif text[index] == ",":
            self._take(text, index)
            self._state = _AFTER_COMMA
        else:
            self.broken = True

    def _after_comma(self, text: str, index: int) -> None:
        char, is_object = text[index], self._closers[-1] == "}"
        if char == self._closers[-1]:
            self._read.append((self.rest() + text[self._begin : index])[1:])
            self._begin = index
            self._close()
            return
        self._read.append(self.rest())
        if is_object:
            self._begin_key(char, may_end=False)
        else:
            self._begin_value(char)

    def _take(self, text: str, index: int) -> None:
        self._read.append(text[self._begin : index])
        self._begin = index

    def _close(self) -> None:
        self._closers.pop()
        self._end_value()

    def _end_value(self) -> None:
        self._state = _AFTER
        self.done = not self._closers

    def _expect(self, holds: bool, state: int) -> None:
        self._state = state
        self.broken = not holds
