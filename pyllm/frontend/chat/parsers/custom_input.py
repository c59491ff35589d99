"""Turns the arguments of custom tools' calls, `{"input": "..."}`, into the input's text. Knows no call format."""

import json
import re
from collections.abc import Collection
from typing import Literal

from pyllm.frontend.chat.parsers.parsed_pieces import Parser, Piece, ToolArguments, ToolCallBegin, add

# The first key and the first character of its value, if they come early enough to be the input's.
_FIRST_MEMBER = re.compile(r'\s*\{\s*("(?:[^"\\]|\\.)*")\s*:\s*(\S)', re.DOTALL)
_MAX_FIRST = 64

_PART = re.compile(r'([^"\\]+)|\\u([0-9a-fA-F]{4})|\\([^u])|(")')
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_REPLACEMENT = "\ufffd"  # for half of a surrogate pair


class CustomInputs:
    """Another parser's pieces. Calls of tools with these names are marked as `custom` and carry their input."""

    def __init__(self, parser: Parser, names: Collection[str]) -> None:
        self._parser = parser
        self._names = names
        self._index = -1
        self._input: InputDecoder | None = None  # of the call that is open, if its tool is custom

    def feed(self, text: str) -> list[Piece]:
        """The other parser's pieces, with the part of each input that is known."""
        return self._decoded(self._parser.feed(text))

    def finish(self) -> list[Piece]:
        """The rest, after the end of the text."""
        pieces = self._decoded(self._parser.finish())
        self._close(pieces)
        return pieces

    def _decoded(self, pieces: list[Piece]) -> list[Piece]:
        decoded: list[Piece] = []
        for piece in pieces:
            match piece:
                case ToolCallBegin(index, name):
                    self._close(decoded)
                    custom = name in self._names
                    if custom:
                        self._index, self._input = index, InputDecoder()
                    decoded.append(ToolCallBegin(index, name, custom))
                case ToolArguments(index, text) if self._input is not None:
                    add(decoded, ToolArguments(index, self._input.feed(text)))
                case _:
                    decoded.append(piece)
        return decoded

    def _close(self, pieces: list[Piece]) -> None:
        if self._input is not None:
            add(pieces, ToolArguments(self._index, self._input.finish()))
        self._input = None


class InputDecoder:
    """Decodes one call's arguments, which may be cut anywhere.

    If `input` is the first key, its text streams at once. Otherwise it arrives at the end. Arguments without a text
    `input` are passed through whole.
    """

    def __init__(self) -> None:
        self._state: Literal["first", "text", "end", "other"] = "first"  # the part that comes next
        self._parts: list[str] = []  # all of the arguments, unless the input is first
        self._rest = ""  # the beginning of an escape
        self._high: int | None = None  # the first half of a surrogate pair

    def feed(self, text: str) -> str:
        """The part of the input that these characters complete."""
        if self._state == "text":
            return self._decode(text)
        if self._state == "end":
            return ""  # Further members are not part of the input.
        self._parts.append(text)
        if self._state == "other":
            return ""
        raw = "".join(self._parts)
        match = _FIRST_MEMBER.match(raw, 0, _MAX_FIRST)
        if match is not None and match[1] == '"input"' and match[2] == '"':
            self._state = "text"
            self._parts.clear()
            return self._decode(raw[match.end() :])
        if match is not None or len(raw) >= _MAX_FIRST:
            self._state = "other"
        return ""

    def finish(self) -> str:
        """The rest, after the end of the arguments."""
        if self._state in ("text", "end"):
            return self._lone()
        raw = "".join(self._parts)
        try:
            given = json.loads(raw)["input"]
        except (ValueError, KeyError, RecursionError):
            given = None
        if not isinstance(given, str):
            return raw
        return given.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def _decode(self, text: str) -> str:
        text, self._rest = self._rest + text, ""
        decoded = []
        position = 0
        while position < len(text) and self._state == "text":
            match = _PART.match(text, position)
            if match is None:
                self._rest = text[position:]
                break
            position = match.end()
            plain, digits, escape, end = match.groups()
            if digits is not None:
                decoded.append(self._unit(int(digits, 16)))
                continue
            decoded.append(self._lone())
            if end is not None:
                self._state = "end"
            else:
                decoded.append(plain or _ESCAPES.get(escape, escape))
        return "".join(decoded)

    def _unit(self, unit: int) -> str:
        """The character that a UTF-16 code unit completes, or nothing after the first half of a pair."""
        if self._high is not None and 0xDC00 <= unit < 0xE000:
            high, self._high = self._high, None
            return chr(0x10000 + ((high - 0xD800) << 10) + unit - 0xDC00)
        lone = self._lone()
        if 0xD800 <= unit < 0xDC00:
            self._high = unit
            return lone
        return lone + (_REPLACEMENT if 0xDC00 <= unit < 0xE000 else chr(unit))

    def _lone(self) -> str:
        lone = "" if self._high is None else _REPLACEMENT
        self._high = None
        return lone
