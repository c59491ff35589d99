"""Turns the arguments of custom tools' calls, `{"input": "..."}`, into the text of the input. Knows no way to call."""

import json
import re
from collections.abc import Collection
from typing import Literal

from pyllm.frontend.parsers.pieces import Parser, Piece, ToolArguments, ToolCallBegin, add

# The first key and the first character of its value. What takes longer to come is no input's key.
_FIRST_MEMBER = re.compile(r'\s*\{\s*("(?:[^"\\]|\\.)*")\s*:\s*(\S)', re.DOTALL)
_MAX_FIRST = 64

_PART = re.compile(r'([^"\\]+)|\\u([0-9a-fA-F]{4})|\\([^u])|(")')
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_REPLACEMENT = "\ufffd"  # for half of a surrogate pair, which is no character


class CustomInputs:
    """Another parser's pieces, where calls of the tools of these names are marked as `custom` and have their input."""

    def __init__(self, parser: Parser, names: Collection[str]) -> None:
        self._parser = parser
        self._names = names
        self._index = -1
        self._input: InputDecoder | None = None  # of the call that is open, if its tool is custom

    def feed(self, text: str) -> list[Piece]:
        """The other's, with as much of each input as is known."""
        return self._decoded(self._parser.feed(text))

    def finish(self) -> list[Piece]:
        """What was held back."""
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
    """Decodes one call's arguments, which come in any pieces.

    The text comes as soon as it is known if `input` is first, as it is where a grammar holds. Otherwise it comes at the
    end; arguments without an input of text are the input themselves.
    """

    def __init__(self) -> None:
        self._state: Literal["first", "text", "end", "other"] = "first"  # what comes next
        self._raw = ""  # all of it, unless the input comes first
        self._rest = ""  # the beginning of an escape
        self._high: int | None = None  # the first half of a surrogate pair

    def feed(self, text: str) -> str:
        """More of the input."""
        if self._state == "text":
            return self._decode(text)
        if self._state == "end":
            return ""  # Further members are no part of it.
        self._raw += text
        if self._state == "other":
            return ""
        match = _FIRST_MEMBER.match(self._raw, 0, _MAX_FIRST)
        if match is not None and match[1] == '"input"' and match[2] == '"':
            self._state = "text"
            return self._decode(self._raw[match.end() :])
        if match is not None or len(self._raw) >= _MAX_FIRST:
            self._state = "other"
        return ""

    def finish(self) -> str:
        """What was held back."""
        if self._state in ("text", "end"):
            return self._lone()
        try:
            given = json.loads(self._raw)["input"]
        except (ValueError, KeyError, RecursionError):
            given = None
        if not isinstance(given, str):
            return self._raw
        return given.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def _decode(self, text: str) -> str:
        text, self._rest = self._rest + text, ""
        decoded = []
        place = 0
        while place < len(text) and self._state == "text":
            match = _PART.match(text, place)
            if match is None:
                self._rest = text[place:]
                break
            place = match.end()
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
        """The character that a code unit makes, with the one before if that is its first half."""
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
