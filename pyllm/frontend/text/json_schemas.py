"""JSON schemas for llguidance: keywords that it cannot compile are left out, and named if they constrain.

The keywords were found by trial; the tests repeat the trials with the installed llguidance. Compiles nothing.
"""

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, lru_cache
from typing import Any, NamedTuple
from urllib.parse import unquote

from pyllm.frontend.text.regex_classes import without_nul
from pyllm.parameters.structured_outputs_params import check_grammar

# Called with the name of a field that has no effect, and the message with which a strict server refuses it.
Ignore = Callable[[str, str], None]
# The formats that a grammar enforces. JSON Schema says that others are annotations.
FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid", "unknown"}
)
# Python's names of types, which hand-written tools use.
PYTHON_TYPES = {
    "bool": "boolean",
    "dict": "object",
    "float": "number",
    "int": "integer",
    "list": "array",
    "str": "string",
    "tuple": "array",
}

_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_COUNTS = frozenset({"maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"})
_NUMBERS = frozenset({"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"})
# llguidance reads no bounds from this one on, such as those of a float64.
_UNKNOWN_NUMBER = 1 << 63
# The keywords whose value is a schema, a list of schemas, or an object of them.
_SCHEMAS: dict[str, type | None] = {
    "additionalItems": None,
    "additionalProperties": None,
    "allOf": list,
    "anyOf": list,
    "items": None,  # or a list, in older drafts
    "oneOf": list,
    "patternProperties": dict,
    "prefixItems": list,
    "properties": dict,
}
_DEFINITIONS = ("$defs", "definitions")
_INDEX = re.compile(r"[0-9]{1,9}")
# A class in brackets, an escape, or the beginning of a look-around. The groups match pieces that no grammar enforces.
_PATTERN_PIECE = re.compile(r"\[(?:\\.|[^\]\\])*|\\(?:([1-9bBk])|.)|(\(\?<?[=!])", re.DOTALL)

_Node = dict[str, Any]


def _if_present(*names: str) -> Callable[[Any, _Node], bool]:
    return lambda _, node: any(name in node for name in names)


def _is_no_free_schema(value: Any, node: _Node) -> bool:
    del node
    return value is not True and value != {}


def _has_optional(node: _Node) -> bool:
    """Whether there is an optional property; llguidance counts properties only where there is none."""
    return not set(node.get("properties", ())) <= set(node.get("required", ()))


# The keywords that llguidance refuses, each with whether a value constrains anything in its schema.
UNKNOWN_KEYWORDS: Mapping[str, Callable[[Any, _Node], bool]] = {
    "$dynamicAnchor": lambda *_: False,
    "$dynamicRef": lambda *_: True,
    "$recursiveAnchor": lambda *_: False,
    "$recursiveRef": lambda *_: True,
    "contains": lambda _, node: node.get("minContains") != 0 or "maxContains" in node,
    "dependencies": lambda value, _: bool(value),
    "dependentRequired": lambda value, _: bool(value),
    "dependentSchemas": lambda value, _: bool(value),
    "else": _if_present("if"),
    "if": _if_present("then", "else"),
    "maxContains": lambda *_: False,  # `contains` is named.
    "minContains": lambda *_: False,
    "not": lambda value, _: bool(value),
    "propertyNames": _is_no_free_schema,
    "then": _if_present("if"),
    "unevaluatedItems": _is_no_free_schema,
    "unevaluatedProperties": _is_no_free_schema,
    "uniqueItems": lambda value, _: value is True,
}


class SchemaError(ValueError):
    """A JSON schema that cannot be read. The text begins with the path of the key."""


class CleanSchema(NamedTuple):
    """A schema of keywords that llguidance knows, and the keywords that were left out of it, each once."""

    schema: dict[str, Any]
    left_out: tuple[str, ...]


def clean_schema(schema: Mapping[str, Any]) -> CleanSchema:
    """A copy of a schema for a grammar. `left_out` has the keywords that would constrain, not the annotations.

    Definitions that no `$ref` leads to are not checked.

    Raises:
        RequestError: it is too long.
        SchemaError: a key has a value that no JSON schema has there, or a reference leads nowhere.
        TypeError, ValueError, RecursionError: it is no JSON, or nested too deeply.
    """
    text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
    check_grammar(text, "json")
    cleaner = _Cleaner(json.loads(text))
    return CleanSchema(cleaner.root, cleaner.clean())


def enforced_schema(schema: Mapping[str, Any], field: str, ignore: Ignore) -> dict[str, Any]:
    """`clean_schema`; `ignore` is called with each keyword that is left out, as a field below `field`."""
    clean = clean_schema(schema)
    for keyword in clean.left_out:
        ignore(f"{field}.{keyword}", f"{field}: the keyword {keyword} of the JSON schema is not enforced; leave it out")
    return clean.schema


@lru_cache(maxsize=256)
def warn_once(name: str, refusal: str) -> None:
    """An `Ignore` for callers that have no response header: a warning in the log, once a name."""
    del name
    logging.getLogger(__name__).warning("%s", refusal.removesuffix("; leave it out"))


class _Path(NamedTuple):
    """A key, and where the object is that has it; rendered for errors only."""

    parent: "_Path | None"
    key: str

    def __str__(self) -> str:
        keys = list[str]()
        path: _Path | None = self
        while path is not None:
            keys.append(path.key)
            path = path.parent
        return ".".join(reversed(keys))


class _Cleaner:
    """Cleans each schema within one in place, once, without recursion. Names in `properties` are no keywords."""

    def __init__(self, root: dict[str, Any]) -> None:
        self.root = root
        self._left_out: dict[str, None] = {}
        self._todo: list[tuple[Any, _Path | None]] = [(root, None)]
        self._needs_all = False
        self._seen: set[int] = set()

    def clean(self) -> tuple[str, ...]:
        for node, path in self._todo:  # which grows meanwhile
            if isinstance(node, bool):
                continue
            if not isinstance(node, dict):
                raise _error(path, "must be an object or a boolean", node)
            if id(node) not in self._seen:
                self._seen.add(id(node))
                self._clean(node, path)
        return tuple(self._left_out)

    def _clean(self, node: _Node, path: _Path | None) -> None:
        unknown = []
        for key, value in list(node.items()):
            if value is None and key != "const":
                del node[key]  # as if it was not there
            elif key in UNKNOWN_KEYWORDS:
                unknown.append(key)
            elif key in _SCHEMAS:
                self._todo += _schemas_in(key, value, _Path(path, key))
            else:
                self._clean_value(node, key, value, path)
        if unknown:
            self._left_out.update({key: None for key in unknown if UNKNOWN_KEYWORDS[key](node[key], node)})
            for key in unknown:
                del node[key]
        self._clean_names(node)
        if ("minProperties" in node or "maxProperties" in node) and _has_optional(node):
            if node.pop("minProperties", 0):
                self._left_out["minProperties"] = None
            if node.pop("maxProperties", None) is not None:
                self._left_out["maxProperties"] = None

    def _clean_value(self, node: _Node, key: str, value: Any, path: _Path | None) -> None:
        if key == "type":
            node[key] = _type(value, _Path(path, key))
        elif key in _COUNTS or key in _NUMBERS:
            node[key] = _number(key, value, _Path(path, key))
            if abs(node[key]) >= _UNKNOWN_NUMBER:
                del node[key]
                self._left_out[key] = None
        elif key == "format":
            if not isinstance(value, str) or value not in FORMATS:
                del node[key]
        elif key == "pattern":
            if isinstance(value, str) and (pattern := _enforceable(value)) is not None:
                node[key] = pattern
            elif isinstance(value, str):
                del node[key]
                self._left_out[key] = None
        elif key == "required":
            self._require(value, node, _Path(path, key))
        elif key == "enum" and not isinstance(value, list):
            raise _error(_Path(path, key), "must be a list", value)
        elif key == "$ref":
            self._follow(value, _Path(path, key))

    def _clean_names(self, node: _Node) -> None:
        schemas = node.get("patternProperties", {})
        if not schemas:
            return
        patterns = {pattern: _enforceable(pattern) for pattern in schemas}
        node["patternProperties"] = {
            enforceable: schemas[pattern] for pattern, enforceable in patterns.items() if enforceable is not None
        }
        if None in patterns.values():
            self._left_out["patternProperties"] = None
            # It would forbid the properties that have these names.
            if _is_no_free_schema(node.pop("additionalProperties", True), node):
                self._left_out["additionalProperties"] = None

    def _require(self, names: Any, node: _Node, path: _Path) -> None:
        if isinstance(names, bool):  # JSON Schema's third draft had that in a property.
            del node["required"]
            if names:
                self._left_out["required"] = None
        elif not isinstance(names, list):
            raise _error(path, "must be a list", names)
        elif others := [name for name in names if not isinstance(name, str)]:
            raise _error(path, "must be a list of names", others[0])

    def _follow(self, reference: Any, path: _Path) -> None:
        if not isinstance(reference, str):
            raise _error(path, "must be a text", reference)
        if reference == "#":
            return
        found = _pointed(self.root, reference)
        if found is not None:
            self._todo.append(found)
        elif reference.startswith("#/") and not self._has_ids:
            raise _error(path, "leads nowhere within the schema", reference)
        elif not self._needs_all:  # An anchor or an `$id` may mean any definition.
            self._needs_all = True
            for key in _DEFINITIONS:
                named = self.root.get(key)
                for name, schema in named.items() if isinstance(named, dict) else ():
                    self._todo.append((schema, _Path(_Path(None, key), name)))

    @cached_property
    def _has_ids(self) -> bool:
        return '"$id"' in json.dumps(self.root)


def _pointed(root: _Node, reference: str) -> tuple[Any, _Path] | None:
    """The value at a JSON pointer, and its path; None if there is none."""
    target: Any = root
    path: _Path | None = None
    for part in reference.split("/")[1:]:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict) and key in target:
            target = target[key]
        elif isinstance(target, list) and _INDEX.fullmatch(key) and int(key) < len(target):
            target = target[int(key)]
        else:
            return None
        path = _Path(path, key)
    return None if path is None or not reference.startswith("#/") else (target, path)


def _schemas_in(key: str, value: Any, path: _Path) -> Iterable[tuple[Any, _Path]]:
    """The schemas that are the value of a keyword."""
    kind = _SCHEMAS[key]
    if isinstance(value, list) and (kind is list or key == "items"):
        return ((schema, _Path(path, str(index))) for index, schema in enumerate(value))
    if isinstance(value, dict) and kind is dict:
        return ((schema, _Path(path, name)) for name, schema in value.items())
    if kind is None:
        return [(value, path)]
    raise _error(path, "must be a list" if kind is list else "must be an object", value)


def _enforceable(pattern: str) -> str | None:
    """A pattern as a grammar enforces it; None if it has a look-around, boundary of a word or backreference.

    Takes time linear in its length.
    """
    return None if any(piece.lastindex for piece in _PATTERN_PIECE.finditer(pattern)) else without_nul(pattern)


def json_type(word: Any) -> Any:
    """JSON Schema's name of a type that has Python's; any other value as it is."""
    return PYTHON_TYPES.get(word, word) if isinstance(word, str) else word


def _type(given: Any, path: _Path) -> Any:
    words = [json_type(word) for word in (given if isinstance(given, list) else [given])]
    for word in words:
        if not isinstance(word, str) or word not in _TYPES:
            raise _error(path, f"must be one of {', '.join(sorted(_TYPES))}", word)
    return list(dict.fromkeys(words)) if isinstance(given, list) else words[0]


def _number(key: str, value: Any, path: _Path) -> Any:
    if isinstance(value, bool) and key.startswith("exclusive"):  # the fourth draft's
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _error(path, "must be a number", value)
    if key not in _COUNTS:
        return value
    if value < 0 or value != int(value):
        raise _error(path, "must be a whole number, 0 or more", value)
    return int(value)


def _error(path: _Path | None, rule: str, given: Any) -> SchemaError:
    place = str(path) if path is not None else "the schema"
    return SchemaError(f"{place[-200:]} {rule}, got {json.dumps(given)[:80]}")
