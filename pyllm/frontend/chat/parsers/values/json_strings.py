"""Writes and decodes strings of JSON, and reads an object that may stand in a string. Knows no calls."""

import json
import re

from pyllm.frontend.chat.parsers.values.json_scanner import WHITESPACE, JsonScanner

_PART = re.compile(r'([^"\\]+)|\\u([0-9a-fA-F]{4})|\\([^u])|(")')
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_REPLACEMENT = "\ufffd"  # for half of a surrogate pair


def escaped_json(text: str) -> str:
    """A text as it stands in a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


class StringDecoder:
    """Decodes one string from behind its opening quote on. The text after its end is not read."""

    __slots__ = ("_begun", "_high", "ended")

    def __init__(self) -> None:
        self.ended = False
        self._begun = ""  # of an escape
        self._high: int | None = None  # the first half of a surrogate pair

    def feed(self, text: str) -> tuple[str, int]:
        """The text that these characters complete, and how many of them there are up to the string's end."""
        carried = len(self._begun)
        text, self._begun = self._begun + text, ""
        decoded = []
        position = 0
        while position < len(text) and not self.ended:
            match = _PART.match(text, position)
            if match is None:
                self._begun, position = text[position:], len(text)
                break
            position = match.end()
            plain, digits, escape, end = match.groups()
            if digits is not None:
                decoded.append(self._unit(int(digits, 16)))
                continue
            decoded.append(self.rest())
            if end is not None:
                self.ended = True
            else:
                decoded.append(plain or _ESCAPES.get(escape, escape))
        return "".join(decoded), max(position - carried, 0)

    def rest(self) -> str:
        """A mark for half of a surrogate pair, of which the other half does not follow."""
        rest = "" if self._high is None else _REPLACEMENT
        self._high = None
        return rest

    def _unit(self, unit: int) -> str:
        """The character that a UTF-16 code unit completes, or nothing after the first half of a pair."""
        if self._high is not None and 0xDC00 <= unit < 0xE000:
            high, self._high = self._high, None
            return chr(0x10000 + ((high - 0xD800) << 10) + unit - 0xDC00)
        rest = self.rest()
        if 0xD800 <= unit < 0xDC00:
            self._high = unit
            return rest
        return rest + (_REPLACEMENT if 0xDC00 <= unit < 0xE000 else chr(unit))


class ObjectScanner:
    """Reads a JSON object, or a string whose text is one: `"{\\"a\\": 1}"`. It is `broken` where neither begins.

    Once the object has begun all of the string's text is given, mended where `JsonScanner` can.
    """

    __slots__ = ("_object", "_string", "_value", "broken", "done", "is_open")
    pending = False  # as that of `LiteralReader`

    def __init__(self) -> None:
        self.done = False
        self.broken = False
        self.is_open = False  # the object has begun
        self._value = JsonScanner()  # as it stands in the text
        self._string: StringDecoder | None = None
        self._object = self._value

    @property
    def is_whole(self) -> bool:
        """Whether the object has come to its end."""
        return self._object.done

    @property
    def missing(self) -> str:
        """The text that closes the object, if a value in it has ended; empty where it stands in a string."""
        return "" if self._string is not None else self._value.missing

    def read(self, text: str, position: int) -> tuple[str, int]:
        """More of the object, and where in the text the value ends or breaks, or the text's end if it goes on."""
        if self._string is None and not self.is_open:  # the first character
            if text[position] == '"':
                self._string, self._object = StringDecoder(), JsonScanner()
                self._value.read('"')
                position += 1
            else:
                self.is_open = text[position] == "{"
                self.broken = not self.is_open
        if self.broken:
            return "", position
        read, position = self._value.read(text, position)
        self.done, self.broken = self._value.done, self._value.broken
        return read if self._string is None else self._in_string(self._string, read), position

    def rest(self) -> str:
        """The text that was held back, at the end of all text."""
        rest = self._value.rest()
        if self._string is None:
            return rest
        return self._in_string(self._string, rest) + self._object.rest() + self._string.rest()

    def _in_string(self, string: StringDecoder, text: str) -> str:
        decoded, _ = string.feed(text)
        if not self.is_open:
            decoded = decoded.lstrip(WHITESPACE)
            self.broken = bool(decoded) and decoded[0] != "{"
            self.is_open = bool(decoded) and not self.broken
        if self.broken:
            return ""
        read, end = self._object.read(decoded)
        return read + decoded[end:]
