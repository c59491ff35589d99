"""What is refused before it is compiled, and what is not."""

import json

import pytest
from llguidance import LLMatcher

from pyllm.errors import RequestError
from pyllm.workers.grammar.schema_limits import (
    MAX_OTHER_BYTES,
    MAX_OTHERS,
    MAX_PATTERNS,
    MAX_PROPERTIES,
    MAX_REMAINDERS,
    check_schemas,
)


def schema(**fields: object) -> str:
    return LLMatcher.grammar_from_json_schema(json.dumps(fields))


def properties(number: int) -> dict[str, object]:
    return {str(index): {} for index in range(number)}


@pytest.mark.parametrize(
    ("text", "is_schema"),
    [
        (schema(type="object"), True),
        (" " + schema(type="object"), True),
        ('{"grammars": [{"json_schema": {}}, {"lark_grammar": "start: \\"a\\""}]}', False),
        (LLMatcher.grammar_from_regex("{}"), False),
        ('start: "a"', False),
        ('start: %json {"type": "integer"} "%json"', False),
        ("", False),
    ],
)
def test_json_schemas_are_told_from_other_grammars(text: str, is_schema: bool) -> None:
    assert check_schemas(text) is is_schema


@pytest.mark.parametrize(
    "text",
    [
        schema(multipleOf=MAX_REMAINDERS),
        schema(anyOf=[{"multipleOf": multiple} for multiple in (0.01, 0.25, 5, 60)]),
        schema(multipleOf="many"),
        schema(multipleOf=-3, properties={"a": {"multipleOf": 0}, "b": {"multipleOf": None}}),
        schema(properties=properties(MAX_PROPERTIES - 1)),
        schema(properties={str(index): {"properties": properties(100)} for index in range(100)}),
        schema(patternProperties=properties(MAX_PATTERNS)),
        schema(enum=["x" * 100] * 10_000),
        "start: " + "a" * (MAX_OTHER_BYTES - 7),
        'start: "' + "%json {" * MAX_OTHERS + '"',
        'start: "a" // %json {"multipleOf"',
        r'start: "%json {\"multipleOf\": 9999991}"',
    ],
)
def test_what_is_large_is_let_through(text: str) -> None:
    check_schemas(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (schema(multipleOf=9_999_991), "multipleOf 9999991 would have more than 250000 remainders"),
        (schema(multipleOf=MAX_REMAINDERS + 1), "use smaller or rounder numbers"),
        (schema(multipleOf=1e-30), "multipleOf 1E-30 "),
        (schema(multipleOf=1e30), "multipleOf 1E+30 "),
        (schema(multipleOf=1.000001), "multipleOf 1.000001 "),
        (schema(allOf=[{"multipleOf": 99_991}, {"multipleOf": 99_989}]), "multipleOf 99989, 99991 "),
        (schema(allOf=[{"multipleOf": 0.01}, {"multipleOf": 9973}]), "multipleOf 0.01, 9973 "),
        ('start: %json {"\\u006dultipleOf" : 9999991}', "multipleOf 9999991 "),
        ('{"grammars": [{"lark_grammar": "start: %json  {\\"multipleOf\\": 9999991}"}]}', "multipleOf 9999991 "),
        ('start: %json {"multipleOf": ' + "9" * 5000 + "}", "number that cannot be read"),
        ('start: %json {"multipleOf": 1e99999999999999999999}', "too large or too small a number"),
        ('start: %json {"multipleOf": 1e9999999999}', "multipleOf 1E+9999999999 would have"),
        ('start: "' + "%json {" * (MAX_OTHERS + 1) + '"', "no JSON"),
        ('start: "%json {" %json {"multipleOf": 9999991}', "multipleOf 9999991 "),
        ('{"grammars"', "no JSON"),
        ('{"a":' * 100_000, "nested too deeply"),
        (schema(properties=properties(MAX_PROPERTIES + 1)), "25000000 is most, which one object of 5000 has"),
        (schema(anyOf=[{"properties": properties(3000)} for _ in range(3)]), "squared, add up to 270000"),
        ("start: %json " + json.dumps({"properties": properties(MAX_PROPERTIES + 1)}), "too many properties"),
        (schema(patternProperties=properties(MAX_PATTERNS + 1)), "40000 is most, which one object of 200 has"),
        ("start: " + "ä" * (MAX_OTHER_BYTES // 2), "the grammar has 262151 bytes; 262144 are most"),
    ],
)
def test_what_would_take_long_to_compile_is_refused(text: str, said: str) -> None:
    with pytest.raises(RequestError) as raised:
        check_schemas(text)
    assert said in str(raised.value)
    assert len(str(raised.value)) < 500
