"""The types that a schema allows, and texts as arguments of these."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllm.frontend.chat.parsers.values.argument_types import argument_json, types_of

PROPERTIES: dict[str, Any] = {
    "text": {"type": "string"},
    "number": {"type": ["integer", "null", {}]},
    "choice": {"enum": ["a", 1, None, [2]]},
    "constant": {"const": 1.5},
    "either": {"anyOf": [{"type": "array"}, {"$ref": "#/$defs/flag"}]},
    "round": {"$ref": "#/properties/round"},
    "lost": {"$ref": "#/$defs/nothing/there"},
    "odd": {"type": 3, "anyOf": 4},
    "none": True,
    "float": {"type": "float"},
    "int": {"type": ["int", "bool"]},
    "dict": {"anyOf": [{"type": "dict"}, {"type": "list"}]},
    "tuple": {"type": "tuple"},
    "str": {"type": "str"},
}
SCHEMA: dict[str, Any] = {"properties": PROPERTIES, "$defs": {"flag": {"oneOf": [{"type": "boolean"}, {}]}}}


@pytest.mark.parametrize(
    ("key", "types"),
    [
        ("text", {"string"}),
        ("number", {"integer", "null"}),
        ("choice", {"string", "integer", "null", "array"}),
        ("constant", {"number"}),
        ("either", {"array", "boolean"}),
        ("float", {"number"}),
        ("int", {"integer", "boolean"}),
        ("dict", {"object", "array"}),
        ("tuple", {"array"}),
        *((key, {"string"}) for key in ("str", "round", "lost", "odd", "none", "absent")),
    ],
)
def test_types_are_those_that_the_schema_allows(key: str, types: set[str]) -> None:
    assert types_of(SCHEMA, key) == types


def test_a_schema_of_nothing_but_references_is_read_once() -> None:
    inner: dict[str, Any] = {"anyOf": [{"$ref": "#/properties/a"}] * 100}
    assert types_of({"properties": {"a": inner}}, "a") == {"string"}
    assert types_of({"properties": 3}, "a") == types_of({}, "a") == {"string"}


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("12", {"integer"}, 12),
        (" 12\n", {"integer"}, 12),
        ("12", {"string"}, "12"),
        ("12", {"string", "null"}, "12"),
        ("12", {"string", "number"}, 12),
        ("null", {"string", "null"}, None),
        ("None", {"object"}, None),
        ("True", {"boolean"}, True),
        ("yes", {"boolean"}, "yes"),
        ("{'a': (1, True)}", {"object"}, {"a": [1, True]}),
        ("[1] [2]", {"array"}, "[1] [2]"),
        ("NaN", {"number"}, "NaN"),
        ("", {"array"}, ""),
    ],
)
def test_a_text_becomes_what_it_may_be(text: str, types: set[str], value: Any) -> None:
    assert json.loads(argument_json(text, frozenset(types))) == value


@given(st.text(), st.sets(st.sampled_from(["string", "integer", "number", "boolean", "null", "array", "object"])))
def test_whatever_the_text_it_becomes_json(text: str, types: set[str]) -> None:
    value = json.loads(argument_json(text, frozenset(types)))
    assert value == text or not isinstance(value, str) or text.strip()[0] in "\"'"


def test_endless_brackets_are_a_string() -> None:
    text = "[" * 100_000
    assert json.loads(argument_json(text, frozenset({"array"}))) == text
