"""Schemas as people send them compile, with what no grammar enforces named; trials of the installed llguidance."""

import json
import logging
import re
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from llguidance import LLMatcher, LLTokenizer

from pyllm.errors import RequestError
from pyllm.frontend.text.json_schemas import (
    FORMATS,
    UNKNOWN_KEYWORDS,
    SchemaError,
    clean_schema,
    enforced_schema,
    warn_once,
)
from pyllm.frontend.text.regex_classes import MAX_REWRITTEN_BYTES, without_nul
from pyllm.frontend.text.structured_outputs import JSON_STYLE, grammar_text
from pyllm.parameters.structured_outputs_params import StructuredOutputsParams

TOKENIZER = LLTokenizer("byte")
STANDARD_FORMATS = (
    *("date-time", "time", "date", "duration", "email", "idn-email", "hostname", "idn-hostname", "ipv4", "ipv6"),
    *("uri", "uri-reference", "iri", "iri-reference", "uuid", "uri-template", "json-pointer", "regex", "unknown"),
    *("relative-json-pointer", "password", "byte", "binary", "url", "color", "int32", "int64", "enum", "decimal", ""),
)
# What zod 4 writes for `z.string().email()`, and pydantic 2 for `Decimal`.
EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
DECIMAL = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"
KNOWN_KEYWORDS: dict[str, Any] = {
    "allOf": [{}],
    "anyOf": [{}],
    "oneOf": [{}],
    "enum": [1],
    "const": 1,
    "type": "string",
    "$ref": "#",
    "$defs": {},
    "items": {},
    "prefixItems": [{}],
    "additionalItems": {},
    "minItems": 1,
    "maxItems": 1,
    "pattern": "a",
    "properties": {},
    "required": ["a"],
    "additionalProperties": {},
    "patternProperties": {},
    "minProperties": 1,
    "minLength": 1,
    "maxLength": 1,
    "minimum": 1,
    "maximum": 1,
    "exclusiveMinimum": 1,
    "multipleOf": 2,
}
UNKNOWN_VALUES: dict[str, Any] = {
    "uniqueItems": True,
    "contains": {"type": "string"},
    "not": {"type": "string"},
    "propertyNames": {"minLength": 1},
    "dependentRequired": {"a": ["b"]},
    "dependentSchemas": {"a": {}},
    "dependencies": {"a": ["b"]},
    "unevaluatedProperties": False,
    "unevaluatedItems": False,
    "$recursiveRef": "#",
    "$dynamicRef": "#a",
}


def error_of(schema: Any) -> str:
    matcher = LLMatcher(TOKENIZER, LLMatcher.grammar_from_json_schema(json.dumps(schema), defaults=JSON_STYLE))
    return matcher.get_error() if matcher.is_error() else ""


def takes(schema: dict[str, Any], text: str) -> bool:
    matcher = LLMatcher(TOKENIZER, grammar_text(StructuredOutputsParams(json=schema)))
    assert not matcher.is_error(), matcher.get_error()
    tokens = TOKENIZER.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def record(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


@pytest.mark.parametrize("name", STANDARD_FORMATS)
def test_the_formats_are_those_that_llguidance_knows(name: str) -> None:
    schema = {"type": "string", "format": name}
    assert (error_of(schema) == "") == (name in FORMATS)
    assert error_of(clean_schema(schema).schema) == ""
    assert clean_schema(schema).left_out == ()


def test_the_keywords_are_those_that_llguidance_does_not_know() -> None:
    for keyword in UNKNOWN_KEYWORDS:
        assert "Unimplemented keys" in error_of({keyword: UNKNOWN_VALUES.get(keyword, {})}), keyword
    for keyword, value in KNOWN_KEYWORDS.items():
        assert error_of({keyword: value}) == "", keyword
        assert clean_schema({keyword: value}).left_out == ()


@pytest.mark.parametrize(("keyword", "value"), UNKNOWN_VALUES.items(), ids=UNKNOWN_VALUES)
def test_a_keyword_that_no_grammar_enforces_is_left_out_and_named(keyword: str, value: Any) -> None:
    schema = record(a={"anyOf": [{"$ref": "#/$defs/x"}, {"type": "array", "items": {keyword: value}}]})
    schema["$defs"] = {"x": {"type": "string", keyword: value}}
    clean = clean_schema(schema)
    assert clean.left_out == (keyword,)
    assert error_of(schema) != error_of(clean.schema) == ""
    assert keyword in schema["$defs"]["x"], "the caller's own is changed"


@pytest.mark.parametrize("kind", ["integer", "number"])
@pytest.mark.parametrize("bound", [2.0**63, 1.7976931348623157e308])
def test_bounds_that_llguidance_cannot_read_are_left_out_and_named(kind: str, bound: float) -> None:
    schema = {"type": kind, "minimum": -bound, "maximum": bound}
    assert "Failed to generate regex" in error_of(schema)
    assert clean_schema(schema) == ({"type": kind}, ("minimum", "maximum"))
    known = {"type": kind, "minimum": -(2**62), "maximum": 2**62}
    assert error_of(known) == ""
    assert clean_schema(known) == (known, ())


@pytest.mark.parametrize(
    "given",
    [
        *({"uniqueItems": False}, {"minContains": 0}, {"contains": {"type": "string"}, "minContains": 0}, {"not": {}}),
        *({"if": {}}, {"then": {"type": "string"}}, {"else": {}}, {"dependentRequired": {}}, {"maxContains": 2}),
        *({"unevaluatedProperties": True}, {"unevaluatedItems": {}}, {"propertyNames": {}}, {"$dynamicAnchor": "a"}),
        *({"type": "string", "format": "password"}, {"format": None}, {"description": None}, {"minItems": None}),
        *({"type": "object", "properties": {"a": {}}, "minProperties": 0}, {"required": False}),
    ],
)
def test_what_constrains_nothing_is_dropped_without_a_word(given: dict[str, Any]) -> None:
    clean = clean_schema({"type": "object", "properties": {"a": given}})
    assert clean.left_out == ()
    assert error_of(clean.schema) == ""


def test_the_parts_of_a_condition_are_all_named() -> None:
    clean = clean_schema({"if": {"type": "object"}, "then": {"required": ["a"]}, "else": {"type": "string"}})
    assert clean == ({}, ("if", "then", "else"))


def test_properties_are_counted_where_none_is_optional() -> None:
    assert clean_schema({"properties": {"a": {}}, "required": ["a"], "minProperties": 2}).left_out == ()
    optional = clean_schema({"type": "object", "properties": {"a": {}}, "minProperties": 1, "maxProperties": 2})
    assert optional.left_out == ("minProperties", "maxProperties")
    assert error_of(optional.schema) == ""


@pytest.mark.parametrize(
    "pattern", [EMAIL, DECIMAL, *(r"\b[a-z]", r"\Bx", r"(a)\1", r"(?<n>a)\k<n>", "(?<=a)b", "(?<!a)b")]
)
def test_a_pattern_that_no_grammar_enforces_is_left_out_and_named(pattern: str) -> None:
    text = {"type": "string", "format": "email", "pattern": pattern}
    clean = clean_schema(record(a=text, b=text))
    assert clean.left_out == ("pattern",)
    assert error_of({"pattern": pattern}) != error_of(clean.schema) == ""
    assert takes(text, '"a@b.org"')
    assert not takes(text, '"a"')


@pytest.mark.parametrize("pattern", [r"^\(?=a$", "[(?=]x", r"[\](?!]", r"\\bx", r"\d{3}\.\w+", "(?:a|b)?=", "(?<b>a)"])
def test_other_patterns_stay(pattern: str) -> None:
    schema = {"type": "string", "pattern": pattern}
    assert clean_schema(schema) == ({"type": "string", "pattern": without_nul(pattern)}, ())
    assert error_of(schema) == ""


# llguidance 1.9.1 takes every escape for a class of all control characters, whatever else it has.
NO_QUOTE = st.sampled_from(
    [
        *(
            r'[^"]',
            r"[^\\]",
            r'[^"\\]',
            r'[^"\n]',
            r"[\x00-!]",
            r"[\x00-\x1f]",
            "[\x00-!]",
            r'[^\w"]',
            r'[^a-z"]',
            r"[\n-!]",
        ),
        *(
            r"\d",
            r"\w",
            ".",
            "a",
            r"\"",
            r"\\",
            r"\n",
            "[a-z]",
            r"[\s,]",
            r"\t",
            '(?:x|[^"])',
            r'(?:\s|[^\s"])',
            "[^a]",
        ),
    ]
)
PATTERNS = st.lists(
    st.builds("{}{}".format, NO_QUOTE, st.sampled_from(["", "", "+", "{2}", "?"])), min_size=1, max_size=3
).map(lambda parts: f"^{''.join(parts)}$")
VALUES = st.text('"\\/\n\t\x01\x1f ,azn5é', max_size=4)


@given(pattern=PATTERNS, value=VALUES)
def test_a_value_that_is_taken_fits_its_pattern(pattern: str, value: str) -> None:
    schema = {"type": "string", "pattern": pattern}
    fits = re.fullmatch(pattern[1:-1], value, re.ASCII) is not None
    # jsonschema has Unicode's letters and digits in its classes, where ECMA 262 has those of ASCII.
    assert not fits or not value.isascii() or Draft202012Validator(schema).is_valid(value)
    assert takes(schema, json.dumps(value, ensure_ascii=False)) is fits
    assert fits or not takes(schema, json.dumps(value))
    named = {"type": "object", "patternProperties": {pattern: {"type": "null"}}, "additionalProperties": False}
    assert takes(named, json.dumps({value: None}, ensure_ascii=False)) is fits


@pytest.mark.parametrize(
    "pattern", [r"^\p{Cc}$", r"^\pC$", r"^\P{Po}$", "^[[:cntrl:]]$", r'(?x)^ [ ^ "\\ ] $', r'^(?i)[^"\\]$']
)
def test_an_escape_is_no_character_of_a_class_that_lacks_it(pattern: str) -> None:
    schema = {"type": "string", "pattern": pattern}
    assert takes(schema, '"\\n"')
    assert not takes(schema, r'"\""')
    assert not takes(schema, r'"\\"')


@pytest.mark.parametrize("pattern", [r'^(?:\x00|[^"])$', r"\u0000[^a]", r"\x{0}", r"\U00000000", "a\0"])
def test_a_pattern_that_names_nul_is_left_out_and_named(pattern: str) -> None:
    assert clean_schema({"pattern": pattern}).left_out == ("pattern",)


@pytest.mark.parametrize("pattern", ["[a", "(a", "[(?=a)"])
def test_a_broken_pattern_stays_refused(pattern: str) -> None:
    assert clean_schema({"pattern": pattern}) == ({"pattern": pattern}, ())
    assert error_of({"pattern": pattern})


def test_names_that_no_grammar_enforces_are_left_out_and_not_forbidden() -> None:
    schema = {
        "type": "object",
        "patternProperties": {"^(?!_)[a-z]": {"type": "integer"}, "^_": {"type": "boolean"}},
        "additionalProperties": False,
    }
    assert clean_schema(schema).left_out == ("patternProperties", "additionalProperties")
    assert takes(schema, '{"_a": true, "b": 1}')
    assert not takes(schema, '{"_a": 1}')
    assert clean_schema({"patternProperties": {EMAIL: {}}}) == ({"patternProperties": {}}, ("patternProperties",))


def test_patterns_are_read_in_one_pass() -> None:
    for pattern in ("(" * 400_000, "\\" * 400_001, "[" * MAX_REWRITTEN_BYTES, "[\\]" * (MAX_REWRITTEN_BYTES // 3)):
        assert clean_schema({"pattern": pattern}).left_out == ()
    for pattern in ("[" * 400_000, "[\\]" * 200_000, "[^x]" + MAX_REWRITTEN_BYTES * "x"):
        assert clean_schema({"pattern": pattern}).left_out == ("pattern",)


def test_properties_may_be_named_like_keywords() -> None:
    names = ("not", "format", "uniqueItems", "if", "type", "$ref", "required", "properties", "enum")
    schema = record(**{name: {"type": "string"} for name in names})
    schema["properties"]["const"] = {"const": {"uniqueItems": True, "format": "x"}}
    schema["properties"]["choice"] = {"enum": [{"not": 1}, None]}
    assert clean_schema(schema) == (schema, ())


@pytest.mark.parametrize(
    ("word", "good", "bad"),
    [
        *(("float", "1.5", '"x"'), ("int", "1", "1.5"), ("bool", "true", "1"), ("dict", "{}", "[]")),
        *(("list", "[]", "{}"), ("tuple", "[]", "{}"), ("str", '"x"', "1")),
    ],
)
def test_types_in_pythons_words_are_jsons(word: str, good: str, bad: str) -> None:
    assert takes({"type": word}, good)
    assert not takes({"type": word}, bad)
    assert takes({"type": [word, "null"]}, "null")
    assert takes({"type": "object", "properties": {"a": {"type": word}}, "required": ["a"]}, f'{{"a": {good}}}')


def test_one_of_is_any_of_where_options_may_overlap() -> None:
    schema = {
        "oneOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"type": "number"}]
    }
    overlapping = {"oneOf": [*schema["oneOf"], {"type": "integer"}]}
    for each in (schema, overlapping):
        assert takes(each, "1")
        assert takes(each, '{"a": 1}')
        assert not takes(each, '"x"')


def test_counts_may_be_written_as_floats() -> None:
    assert takes({"type": "string", "maxLength": 2.0}, '"ab"')
    assert not takes({"type": "string", "maxLength": 2.0}, '"abc"')


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (record(a={"type": "objec"}), 'properties.a.type must be one of array, .*, got "objec"'),
        (record(a=1), "properties.a must be an object or a boolean, got 1"),
        ({"properties": []}, r"properties must be an object, got \[\]"),
        ({"items": {"anyOf": {}}}, "items.anyOf must be a list"),
        ({"anyOf": [{}, {"enum": "a"}]}, "anyOf.1.enum must be a list"),
        ({"required": "a"}, "required must be a list"),
        ({"required": [1]}, "required must be a list of names, got 1"),
        ({"minLength": -1}, "minLength must be a whole number, 0 or more, got -1"),
        ({"minimum": "1"}, 'minimum must be a number, got "1"'),
        (record(a={"$ref": "#/components/schemas/A"}), r"properties.a.\$ref leads nowhere within the schema"),
        ({"$defs": {"x": {"type": []}, "y": {"type": "x"}}, "$ref": "#/$defs/y"}, r"\$defs.y.type must be one of"),
        ({"$ref": 1}, r"\$ref must be a text, got 1"),
    ],
)
def test_what_cannot_be_read_names_the_key(schema: dict[str, Any], text: str) -> None:
    with pytest.raises(SchemaError, match=f"^{text}"):
        clean_schema(schema)
    with pytest.raises(RequestError, match=f"structured_outputs: json is not a JSON schema: {text}"):
        grammar_text(StructuredOutputsParams(json=schema))


def test_a_reference_may_lead_anywhere_and_in_circles() -> None:
    schema = {
        "parts": {"a/b": {"type": "object", "properties": {"next": {"$ref": "#/parts/a~1b"}}, "uniqueItems": True}},
        "anyOf": [{"$ref": "#/parts/a~1b"}, {"$ref": "#"}, {"$ref": "#/anyOf/0"}, {"type": "array", "items": False}],
        "$defs": {
            "unused": {"type": "none of them", "contains": {}},
            "found": {"$anchor": "x", "not": {"type": "null"}},
        },
    }
    assert clean_schema(schema).left_out == ("uniqueItems",)
    del schema["$defs"]["unused"]
    schema["properties"] = {"a": {"$ref": "#x"}}
    assert set(clean_schema(schema).left_out) == {"uniqueItems", "not"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "$ref", *KNOWN_KEYWORDS, *UNKNOWN_KEYWORDS]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["a", "$ref", *KNOWN_KEYWORDS, *UNKNOWN_KEYWORDS]), JSON, max_size=4))
def test_any_json_is_cleaned_or_refused_by_key(schema: dict[str, Any]) -> None:
    before = json.dumps(schema)
    with suppress(SchemaError):
        clean = clean_schema(schema)
        assert "Unimplemented keys" not in error_of(clean.schema)
        assert clean_schema(clean.schema) == (clean.schema, ())
    assert json.dumps(schema) == before


def test_deep_schemas_are_refused_and_wide_ones_are_not() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"items": deep}
    with pytest.raises(RequestError, match="nested too deeply"):
        grammar_text(StructuredOutputsParams(json=deep))
    wide = {"$defs": {"x": {"uniqueItems": True}}, "anyOf": [{"$ref": "#/$defs/x"}] * 5_000 + [{"$ref": "y"}] * 5_000}
    assert clean_schema(wide).left_out == ("uniqueItems",)


def test_who_ignores_hears_of_each_keyword_once() -> None:
    heard: list[tuple[str, str]] = []
    schema = record(a={"uniqueItems": True}, b={"uniqueItems": True, "contains": {}})
    enforced_schema(schema, "tools.f", lambda name, text: heard.append((name, text)))
    assert [name for name, _ in heard] == ["tools.f.uniqueItems", "tools.f.contains"]
    assert heard[0][1] == "tools.f: the keyword uniqueItems of the JSON schema is not enforced; leave it out"


def test_programs_without_a_header_are_warned_once_a_name(caplog: pytest.LogCaptureFixture) -> None:
    warn_once.cache_clear()
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            grammar_text(StructuredOutputsParams(json=schema))
    assert [record.getMessage() for record in caplog.records] == [
        "structured_outputs: the keyword uniqueItems of the JSON schema is not enforced"
    ]
