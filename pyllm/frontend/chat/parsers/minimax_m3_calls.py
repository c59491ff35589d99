"""MiniMax M3's tool calls: an element for each argument, and further ones within it for objects and lists.

The model's own token stands before each tag, so texts need no escapes. The tool's schema tells their types.
"""

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from pyllm.frontend.chat.parsers.parsed_pieces import MAX_NAME, CallWriter
from pyllm.frontend.chat.parsers.values.argument_types import Schema, Schemas, argument_json, property_names, types_of
from pyllm.frontend.chat.parsers.values.json_strings import escaped_json
from pyllm.frontend.chat.parsers.values.markers import LiteralMatcher, MarkerFinder

MINIMAX_TOKEN = "]<]minimax[>["  # noqa: S105 (no secret: the text of a special token)
_ITEM = "item"  # the element of each part of a list
_INVOKE = re.compile(r'<invoke name="([^"<>]+)">')
_OPENING = re.compile(r"<([^/<>][^<>]*)>")
_END_CALL, _END_SECTION = "</invoke>", "</tool_call>"
_TEXT = frozenset({"string"})


class _Element(Struct):
    """An argument or a part of one. `schema` is that of the elements in it."""

    name: str
    types: frozenset[str]
    schema: Schema
    texts: list[str] = []
    elements: list["_Element"] = []


class MinimaxM3Calls:
    """Calls up to the end of their section. A call is given with its first argument or its end.

    Texts stream; other arguments come whole. Elements that are open where a call ends or breaks off are closed.
    """

    def __init__(self, writer: CallWriter, schemas: Schemas) -> None:
        self._writer = writer
        self._num_before = writer.num_calls  # calls
        self._schemas = schemas
        self._name = ""  # of the call that is open
        self._begun = False
        self._has_arguments = False
        self._open: list[_Element] = []
        self._streams = False  # the argument that is open is a text
        self._token = LiteralMatcher([MINIMAX_TOKEN])  # where no argument is open
        self._text = MarkerFinder((MINIMAX_TOKEN,), strips=False)  # within one
        self._tag: str | None = None  # once its token has come
        self.done = False
        self.broken = False
        self.settled = False
        self.in_arguments = False  # never: the text after a broken element is content

    @property
    def _has_calls(self) -> bool:
        return self._writer.num_calls > self._num_before

    def step(self, text: str, position: int) -> int:
        """Read on."""
        if self._tag is not None:
            position = self._read_tag(self._tag, text[position], position)
        elif self._open:
            found = self._text.find(text, position)
            self._add_text(found.text)
            self._tag = "" if found.marker else None
            position = found.position
        else:
            position = self._read_token(text[position], position)
        if self.broken and self._has_arguments:
            self._writer.give("}")
        is_between = self._tag is None and not self._token.matched and (self._begun or not self._name)
        self.settled = self.done or (not self.broken and (bool(self._open) or (is_between and self._has_calls)))
        return position

    def finish(self) -> None:
        """Give the rest of a call that the end of the sample cuts off."""
        if self._open:
            self._add_text(self._text.rest() if self._tag is None else MINIMAX_TOKEN + self._tag)
            self.settled = True

    def _read_token(self, char: str, position: int) -> int:
        if char.isspace() and not self._token.matched:
            return position + 1
        if not self._token.take(char):
            self.broken = True
            return position
        if self._token.found:
            self._token, self._tag = LiteralMatcher([MINIMAX_TOKEN]), ""
        return position + 1

    def _read_tag(self, tag: str, char: str, position: int) -> int:
        if (char == "<") != (not tag) or len(tag) > MAX_NAME:
            self._tag = None
            self._add_text(MINIMAX_TOKEN + tag)
            self.broken = not self._open
            return position
        self._tag = tag + char
        if char == ">":
            self._tag = None
            self._take_tag(tag + char)
        return position if self.broken else position + 1

    def _take_tag(self, tag: str) -> None:
        opening, invoke = _OPENING.fullmatch(tag), _INVOKE.fullmatch(tag)
        if self._name and tag in (_END_CALL, _END_SECTION):
            self._end_call()
            self.done = tag == _END_SECTION
        elif self._open and tag == f"</{self._open[-1].name}>":
            self._close()
        elif self._open and (self._streams or opening is None):
            self._add_text(MINIMAX_TOKEN + tag)
        elif self._name and opening is not None:
            self._open_element(opening[1])
        elif not self._name and invoke is not None and invoke[1].isprintable():
            self._name = invoke[1]
        elif tag == _END_SECTION and self._has_calls:
            self.done = True
        else:
            self.broken = True

    def _open_element(self, name: str) -> None:
        schema = self._open[-1].schema if self._open else self._schemas.get(self._name, {})
        element = _Element(name, types_of(schema, name), _inner(schema, name))
        if not self._open:
            self._begin()
            self._writer.give(f'{", " if self._has_arguments else "{"}"{escaped_json(name)}": ')
            self._has_arguments = True
            self._streams = element.types == _TEXT and name in property_names(schema)
            self._writer.give('"' if self._streams else "")
        self._open.append(element)

    def _add_text(self, text: str) -> None:
        if self._streams:
            self._writer.give(escaped_json(text))
        elif self._open and text:
            self._open[-1].texts.append(text)

    def _close(self) -> None:
        element = self._open.pop()
        if self._open:
            self._open[-1].elements.append(element)
            return
        self._writer.give('"' if self._streams else _json(element))
        self._streams = False

    def _end_call(self) -> None:
        while self._open:
            self._close()
        self._begin()
        self._writer.give("}" if self._has_arguments else "{}")
        self._name, self._begun, self._has_arguments = "", False, False

    def _begin(self) -> None:
        if not self._begun:
            self._writer.begin(self._name)
        self._begun = True


def _json(element: _Element) -> str:
    parts = element.elements
    if parts and all(part.name == _ITEM for part in parts) and "object" not in element.types:
        return f"[{', '.join(map(_json, parts))}]"
    if parts:
        return "{" + ", ".join(f'"{escaped_json(part.name)}": {_json(part)}' for part in parts) + "}"
    text = "".join(element.texts)
    if not text.strip() and "string" not in element.types:  # An empty list or object has nothing in it.
        return "[]" if "array" in element.types else "{}" if "object" in element.types else "null"
    return argument_json(text, element.types)


def _inner(schema: Schema, name: str) -> Schema:
    """The schema of the elements in one: its properties, or the parts of a list."""
    properties = schema.get("properties")
    found = properties.get(name) if isinstance(properties, Mapping) else None
    inner: dict[str, Any] = {"$defs": schema.get("$defs")}
    if isinstance(found, Mapping):
        inner["properties"] = {_ITEM: found["items"]} if "items" in found else found.get("properties")
    return inner
