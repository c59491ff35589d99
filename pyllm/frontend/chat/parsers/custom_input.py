"""Turns the arguments of custom tools' calls, `{"input": "..."}`, into the input's text. Knows no call format."""

import json
import re
from collections.abc import Collection
from typing import Literal

from pyllm.frontend.chat.parsers.parsed_pieces import Parser, Piece, ToolArguments, ToolCallBegin, add
from pyllm.frontend.chat.parsers.values.json_scanner import JsonScanner
from pyllm.frontend.chat.parsers.values.json_strings import StringDecoder

# The first key and the first character of its value, if they come early enough to be the input's.
_FIRST_MEMBER = re.compile(r'\s*\{\s*("(?:[^"\\]|\\.)*")\s*:\s*(\S)', re.DOTALL)
_MAX_FIRST = 64


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
    `input` are passed through whole, and so is unreadable text after the input's end.
    """

    def __init__(self) -> None:
        self._state: Literal["first", "text", "other"] = "first"  # the part that comes next
        self._parts: list[str] = []  # all of the arguments; if the input is first, the text after it
        self._string = StringDecoder()

    def feed(self, text: str) -> str:
        """The part of the input that these characters complete."""
        if self._state == "text":
            return self._decode(text)
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
        raw = "".join(self._parts)
        if self._state == "text":
            # Further members are not part of the input. Where there are none, its end was a quote in it.
            following = JsonScanner()
            following.read('{"input": ""' + raw)
            return self._string.rest() + (f'"{raw}' if following.broken else "")
        try:
            given = json.loads(raw)["input"]
        except (ValueError, KeyError, RecursionError):
            given = None
        if not isinstance(given, str):
            return raw
        return given.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def _decode(self, text: str) -> str:
        decoded, position = self._string.feed(text)
        if position < len(text):
            self._parts.append(text[position:])
        return decoded
