"""Reads one value as Python or Gemma writes it, in any pieces, and gives it as JSON. Knows no calls."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from pyllm.frontend.chat.parsers.values.json_strings import escaped_json

_SPACE = re.compile(r"\s*")
_JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
# The numbers of Python that JSON writes otherwise: a sign, zeros, underscores, a bare point.
_NUMBER = re.compile(r"[+-]?([0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)([eE][+-]?[0-9]+)?")
_ESCAPES = {
    **dict(zip("ntrbfva0", "\n\t\r\b\f\v\a\0", strict=True)),
    **{char: char for char in "\\'\"/"},
    "\n": "",
}
_DIGITS = {"x": 2, "u": 4, "U": 8}
_MAX_WORD = 4096
_MAX_KEY = 256
_REPLACEMENT = "\ufffd"


class _State(Enum):
    """The syntax that may come next."""

    VALUE, ITEM_OR_END, KEY_OR_END, KEY, COLON, AFTER, STRING, ESCAPE, WORD = range(9)


@dataclass(frozen=True, slots=True)
class Dialect:
    """A way to write values. With a `delimiter` strings stand between two of it, unescaped, and keys are bare."""

    words: Mapping[str, str]
    closers: Mapping[str, str]
    delimiter: str = ""


_WORDS = {word: word.lower() for word in ("true", "false", "null", "True", "False")}
PYTHON = Dialect({**_WORDS, "None": "null"}, {"[": "]", "{": "}", "(": ")"})


def delimited(delimiter: str) -> Dialect:
    """Gemma's way to write values, with this delimiter of strings."""
    return Dialect({**_WORDS, "None": "null"}, {"[": "]", "{": "}"}, delimiter)


class LiteralReader:
    """Reads one value in a dialect, and gives JSON as soon as it is certain.

    `done` is set where the value ends, which for a word is before the character after it. `broken` is set before the
    first character that is no part of a value. While it is `pending`, characters were read that are not given.
    """

    # As those of `ObjectScanner`: it begins at once, and ends where it is done.
    is_open = is_whole = True
    missing = ""

    def __init__(self, dialect: Dialect) -> None:
        self.done = False
        self.broken = False
        self._dialect = dialect
        self._state = _State.VALUE
        self._closers: list[str] = []  # of the containers that are open
        self._first = False  # the innermost of them has no item yet
        self._quote = ""
        self._in_key = False
        self._held = ""  # the beginning of a delimiter or of an escape
        self._high = ""  # the first half of a surrogate pair
        self._due = ""  # a comma, to be given with the value after it
        self._word: list[str] = []
        self._out: list[str] = []

    @property
    def pending(self) -> bool:
        """Whether characters were read that are not given yet."""
        if self._state in (_State.ITEM_OR_END, _State.KEY_OR_END):
            return not self._first  # A comma is given with what follows it.
        return self._state in (_State.WORD, _State.KEY) or (self._state == _State.STRING and not self._quote)

    def read(self, text: str, position: int) -> tuple[str, int]:
        """Read on by a step: more of the value, and the next position in the text."""
        position = self._step(text, position)
        return self._taken(), position

    def rest(self) -> str:
        """The text that is pending, at the end of all text."""
        if self._state == _State.WORD:
            self._begin(self._json_of_word() or "".join(self._word))
        elif self._state == _State.STRING and self._held:
            self._out.append(escaped_json(self._held))
        self._give_lone()
        self._word.clear()
        self._held = ""
        return self._taken()

    def _taken(self) -> str:
        taken = "".join(self._out)
        self._out.clear()
        return taken

    def _step(self, text: str, position: int) -> int:
        char = text[position]
        match self._state:
            case _State.STRING:
                return self._in_string(text, position)
            case _State.ESCAPE:
                taken = self._in_escape(char)
            case _State.WORD:
                taken = self._in_word(char)
            case _State.KEY if self._word:
                taken = self._in_key_word(char)
            case _ if char.isspace():
                taken = True
            case _State.AFTER:
                taken = self._after_value(char)
            case _State.COLON:
                taken = self._expect(char == ":", _State.VALUE)
                self._out.append(": " if taken else "")
            case _State.ITEM_OR_END | _State.KEY_OR_END if char == self._closers[-1]:
                taken = self._close()
            case _State.KEY | _State.KEY_OR_END:
                taken = self._begin_key(char)
            case _:
                taken = self._begin_value(char)
        return position + 1 if taken else position

    def _begin_value(self, char: str) -> bool:
        dialect = self._dialect
        if char in "]}),:=":
            return self._break()
        if self._closers and self._closers[-1] != "}":
            self._expect_comma()
        if char in dialect.closers:
            self._closers.append(dialect.closers[char])
            self._begin("{" if char == "{" else "[")
            self._state = _State.KEY_OR_END if char == "{" else _State.ITEM_OR_END
            self._first = True
        elif dialect.delimiter and char == dialect.delimiter[0]:
            # It is not known to begin before all of the delimiter has come.
            self._state, self._quote, self._held = _State.STRING, "", ""
            return False
        elif char in "\"'" and (not dialect.delimiter or char == '"'):
            self._begin_string(char, False)
        else:
            self._state = _State.WORD
            self._word.append(char)
        return True

    def _begin_key(self, char: str) -> bool:
        if self._dialect.delimiter and char not in '"{}[],:':
            self._state = _State.KEY
            self._word.append(char)
            return True
        if char not in ('"' if self._dialect.delimiter else "\"'"):
            return self._break()
        self._expect_comma()
        self._begin_string(char, True)
        return True

    def _begin_string(self, quote: str, in_key: bool) -> None:
        self._state, self._quote, self._in_key = _State.STRING, quote, in_key
        self._begin('"')

    def _expect_comma(self) -> None:
        self._due = "" if self._first else ", "
        self._first = False

    def _begin(self, text: str) -> None:
        self._out.append(self._due + text)
        self._due = ""

    def _in_string(self, text: str, position: int) -> int:
        if self._quote in ('"', "'"):
            end = _end_of_plain(text, position, self._quote)
            self._give(text[position:end])
            if end == len(text):
                return end
            if text[end] == "\\":
                self._state, self._held = _State.ESCAPE, ""
            else:
                self._end_string()
            return end + 1
        return self._in_delimited(text, position)

    def _in_delimited(self, text: str, position: int) -> int:
        delimiter = self._dialect.delimiter
        if not self._quote:  # the opening one
            if not delimiter.startswith(self._held + text[position]):
                self.broken = True
                return position
            self._held += text[position]
            if self._held == delimiter:
                self._held = ""
                self._begin_string(delimiter, False)
            return position + 1
        if not self._held:
            end = text.find(delimiter[0], position)
            end = len(text) if end < 0 else end
            self._give(text[position:end])
            if end == len(text):
                return end
            position = end
        self._held += text[position]
        if self._held == delimiter:
            self._held = ""
            self._end_string()
        while self._held and not delimiter.startswith(self._held):
            self._give(self._held[0])
            self._held = self._held[1:]
        return position + 1

    def _end_string(self) -> None:
        self._give_lone()
        self._out.append('"')
        if self._in_key:
            self._state = _State.COLON
        else:
            self._end_value()

    def _in_escape(self, char: str) -> bool:
        if not self._held and char not in _DIGITS:
            self._give(_ESCAPES.get(char, "\\" + char))
            self._state = _State.STRING
            return True
        if self._held and char not in "0123456789abcdefABCDEF":
            self._give("\\" + self._held)  # Python would refuse it.
            self._held, self._state = "", _State.STRING
            return False
        self._held += char
        if len(self._held) > _DIGITS[self._held[0]]:
            self._give_code(int(self._held[1:], 16))
            self._held, self._state = "", _State.STRING
        return True

    def _give_code(self, code: int) -> None:
        if 0xD800 <= code < 0xDC00:
            self._give_lone()
            self._high = chr(code)
        elif 0xDC00 <= code < 0xE000 and self._high:
            pair, self._high = self._high + chr(code), ""
            self._out.append(pair.encode("utf-16", "surrogatepass").decode("utf-16"))
        else:
            is_char = code < 0xD800 or 0xE000 <= code < 0x110000
            self._give(chr(code) if is_char else _REPLACEMENT)

    def _give(self, text: str) -> None:
        if text:
            self._give_lone()
            self._out.append(escaped_json(text))

    def _give_lone(self) -> None:
        if self._high:
            self._out.append(_REPLACEMENT)
        self._high = ""

    def _in_key_word(self, char: str) -> bool:
        delimiter, key = self._dialect.delimiter, "".join(self._word)
        if char == ":" and (not key.startswith(delimiter) or (key.endswith(delimiter) and key != delimiter)):
            key = key.strip().removeprefix(delimiter).removesuffix(delimiter)
            self._word.clear()
            self._expect_comma()
            self._begin(f'"{escaped_json(key)}": ')
            self._state = _State.VALUE
        elif len(self._word) > _MAX_KEY or (char in "{}[],\n" and not key.startswith(delimiter)):
            return self._break()
        else:
            self._word.append(char)
        return True

    def _in_word(self, char: str) -> bool:
        if char in ",]}" or (not self._dialect.delimiter and (char in "):=" or char.isspace())):
            self._end_word()
            return False
        # A marker ends no bare text, so that none is read again and again.
        if len(self._word) > _MAX_WORD or char in "<[{(":
            return self._break()
        self._word.append(char)
        return True

    def _end_word(self) -> None:
        text = self._json_of_word()
        self.broken = not text
        if text:
            self._begin(text)
            self._word.clear()
            self._end_value()

    def _json_of_word(self) -> str:
        word = "".join(self._word).strip()
        if word in self._dialect.words:
            return self._dialect.words[word]
        if _JSON_NUMBER.fullmatch(word):
            return word
        if _NUMBER.fullmatch(word):
            try:
                return json.dumps(float(word) if set(word) & set(".eE") else int(word), allow_nan=False)
            except ValueError:
                pass  # Too large, or misplaced underscores.
        return f'"{escaped_json(word)}"' if self._dialect.delimiter else ""

    def _after_value(self, char: str) -> bool:
        if char == self._closers[-1]:
            return self._close()
        return self._expect(char == ",", _State.KEY_OR_END if self._closers[-1] == "}" else _State.ITEM_OR_END)

    def _close(self) -> bool:
        self._out.append("}" if self._closers.pop() == "}" else "]")
        self._end_value()
        return True

    def _end_value(self) -> None:
        self._state, self._first = _State.AFTER, False
        self.done = not self._closers

    def _expect(self, holds: bool, state: _State) -> bool:
        self._state = state
        return holds or self._break()

    def _break(self) -> bool:
        self.broken = True
        return False


_PLAIN = {quote: re.compile(rf"[^{quote}\\]*") for quote in "\"'"}


def _end_of_plain(text: str, position: int, quote: str) -> int:
    match = _PLAIN[quote].match(text, position)
    assert match is not None
    return match.end()
