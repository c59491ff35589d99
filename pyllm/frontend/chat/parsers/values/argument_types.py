"""Turns an argument that a model wrote as text into JSON, by the types that the tool's schema allows it."""

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from pyllm.frontend.chat.parsers.values.json_strings import escaped_json
from pyllm.frontend.chat.parsers.values.literal_reader import PYTHON, LiteralReader

Schema = Mapping[str, Any]
Schemas = Mapping[str, Schema]  # of tools, by name
_TEXT = frozenset({"string"})

_NAMES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
# The values of `type`: the words of JSON Schema, and those of Python, which hand-written schemas use.
_NAMED = {
    **{name: name for name in (*_NAMES.values(), "null")},
    **{kind.__name__: name for kind, name in _NAMES.items()},
    "tuple": "array",
}


def types_of(schema: Schema, key: str) -> frozenset[str]:
    """The types that a property may have. A property without types in the schema is a string."""
    properties = schema.get("properties")
    found = properties.get(key) if isinstance(properties, Mapping) else None
    return _types(found, schema) or _TEXT


def property_names(schema: Schema) -> list[str]:
    """The arguments that a schema names."""
    properties = schema.get("properties")
    return list(properties) if isinstance(properties, Mapping) else []


def argument_json(text: str, types: frozenset[str]) -> str:
    """The JSON of an argument: a string, unless its type may be another and the text is one of that."""
    if types == _TEXT:
        return f'"{escaped_json(text)}"'
    value = _as_json(text.strip())
    if value is None or ("string" in types and not _type_names(value) & types):
        return f'"{escaped_json(text)}"'
    return value


def _as_json(text: str) -> str | None:
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        reader, parts, position = LiteralReader(PYTHON), list[str](), 0
        text += "\n"  # ends a word
        while position < len(text) and not (reader.done or reader.broken):
            read, position = reader.read(text, position)
            parts.append(read)
        return "".join(parts) if reader.done and not text[position:].strip() else None
    return text


def _type_names(value: str) -> frozenset[str]:
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        return frozenset()
    name = "null" if parsed is None else _NAMES[type(parsed)]
    return frozenset({"integer", "number"} if name == "integer" else {name})


def _types(schema: Any, root: Schema) -> frozenset[str]:
    """The types that a schema names, or none. Each part of the schema is read once, even if it refers to itself."""
    types: set[str] = set()
    seen: set[int] = set()
    parts = [schema]
    while parts:
        part = parts.pop()
        if not isinstance(part, Mapping) or id(part) in seen:
            continue
        seen.add(id(part))
        given = part.get("type")
        values = [part["const"]] if "const" in part else part.get("enum")
        if given is not None:
            named = [given] if isinstance(given, str) else _listed(given)
            types.update(_NAMED[name] for name in named if isinstance(name, str) and name in _NAMED)
        elif isinstance(values, list):
            types.update("null" if value is None else _NAMES.get(type(value), "string") for value in values)
        else:
            parts.append(_target(part.get("$ref"), root))
            parts += [choice for key in ("anyOf", "oneOf", "allOf") for choice in _listed(part.get(key))]
    return frozenset(types)


def _target(reference: Any, root: Schema) -> Any:
    """The part of a schema that a reference within it means, or None."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    target: Any = root
    for name in reference[2:].split("/"):
        target = target.get(name) if isinstance(target, Mapping) else None
    return target


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)
