"""Objects of a format have the properties that it names, as Ollama's answers do."""

import copy
from typing import Any

import pytest

from pyllm.frontend.ollama.closed_objects import close_objects

TEXT = {"type": "string"}
CITY = {"type": "object", "properties": {"city": TEXT}, "required": ["city"]}
CLOSED = {**CITY, "additionalProperties": False}


@pytest.mark.parametrize(
    ("given", "closed"),
    [
        (CITY, CLOSED),
        ({"properties": {"a": CITY}}, {"properties": {"a": CLOSED}, "additionalProperties": False}),
        ({"type": "array", "items": CITY}, {"type": "array", "items": CLOSED}),
        ({"prefixItems": [CITY, TEXT]}, {"prefixItems": [CLOSED, TEXT]}),
        ({"anyOf": [CITY, {"type": "null"}]}, {"anyOf": [CLOSED, {"type": "null"}]}),
        ({"$ref": "#/$defs/C", "$defs": {"C": CITY}}, {"$ref": "#/$defs/C", "$defs": {"C": CLOSED}}),
        ({"allOf": [CITY]}, {"allOf": [CLOSED]}),
        ({"additionalProperties": CITY}, {"additionalProperties": CLOSED}),
    ],
)
def test_further_properties_are_forbidden_at_every_depth(given: dict[str, Any], closed: dict[str, Any]) -> None:
    schema = copy.deepcopy(given)
    close_objects(schema)
    assert schema == closed


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "properties": {}},
        {**CITY, "additionalProperties": True},
        {**CITY, "additionalProperties": TEXT},
        {**CITY, "patternProperties": {"x": TEXT}},
        # Objects that are put together: each part would forbid the properties of the others.
        {"allOf": [CITY, {"properties": {"other": TEXT}}]},
        {**CITY, "anyOf": [{"properties": {"other": TEXT}}, {}]},
        {**CITY, "$ref": "#/$defs/C", "$defs": {"C": {"properties": {"other": TEXT}}}},
        {"$ref": "#/$defs/C", "allOf": [{"properties": {"other": TEXT}}], "$defs": {"C": CITY}},
        {"allOf": [CITY], "anyOf": [{"properties": {"other": TEXT}}, {}]},
        # Properties that are required and not named could not be there.
        {**CITY, "required": ["city", "other"]},
        {"allOf": [CITY], "required": ["other"]},
        # What is no schema is not looked into.
        {"properties": [1], "items": 3, "anyOf": {"x": 1}, "$defs": None, "enum": [CITY]},
    ],
)
def test_what_says_more_stays_as_it_is(schema: dict[str, Any]) -> None:
    left = copy.deepcopy(schema)
    close_objects(left)
    assert left == schema


def test_depth_is_no_trouble() -> None:
    schema: dict[str, Any] = {}
    for _ in range(10_000):
        schema = {"items": schema}
    close_objects(schema)
