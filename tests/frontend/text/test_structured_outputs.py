"""Every form becomes a grammar that takes the outputs of this form and no others, or is refused by name."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from pyllm.errors import RequestError
from pyllm.frontend.text.structured_outputs import MAX_GBNF_BYTES, grammar_text, resolve_constraint
from pyllm.parameters.structured_outputs_params import MAX_GRAMMAR_BYTES, ResolvedConstraint, StructuredOutputsParams

TOKENIZER = LLTokenizer("byte")
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "size": {"type": "integer"}},
    "required": ["name", "size"],
    "additionalProperties": False,
}
GBNF = 'root ::= item ("," item)*\nitem ::= [0-9]+  # a number\n'


def takes(grammar: str, text: str) -> bool:
    matcher = LLMatcher(TOKENIZER, grammar)
    assert not matcher.is_error(), matcher.get_error()
    tokens = TOKENIZER.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        ({"json": SCHEMA}, '{"name": "x", "size": 5}', '{"name": "x"}'),
        ({"json": json.dumps(SCHEMA)}, '{"name": "x", "size": 5}', '{"name": 5, "size": 5}'),
        ({"json_object": True}, '{"a": [1, null]}', "[1]"),
        ({"regex": r"a/b\d+"}, "a/b12", "a/b"),
        ({"regex": "^x\ny$"}, "x\ny", "xy"),
        ({"choice": ["yes", "no"]}, "no", "maybe"),
        ({"grammar": 'start: "a" NUMBER\nNUMBER: /[0-9]+/'}, "a12", "a"),
        ({"grammar": GBNF}, "1,23", "1,"),
        ({"grammar": '{"grammars": [{"lark_grammar": "start: \\"a\\""}]}'}, "a", "b"),
    ],
)
def test_a_form_takes_its_outputs_only(form: dict[str, Any], good: str, bad: str) -> None:
    grammar = grammar_text(StructuredOutputsParams(**form))
    assert takes(grammar, good)
    assert not takes(grammar, bad)
    assert grammar_text(StructuredOutputsParams(grammar=grammar)) == grammar


def test_json_has_no_whitespace_of_the_models_choice_unless_its_schema_says_so() -> None:
    grammar = grammar_text(StructuredOutputsParams(json=SCHEMA))
    assert not takes(grammar, '{"name":"x","size":5}')
    assert not takes(grammar, '{"name": "x",\n"size": 5}')
    free = {**SCHEMA, "x-guidance": {"whitespace_flexible": True, "item_separator": ",", "key_separator": ":"}}
    assert takes(grammar_text(StructuredOutputsParams(json=free)), '{"name":"x",\n"size": 5}')


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), min_size=1, max_size=4))
def test_any_text_can_be_a_choice(choices: list[str]) -> None:
    grammar = grammar_text(StructuredOutputsParams(choice=choices))
    assert all(takes(grammar, choice) for choice in choices)
    assert not takes(grammar, "".join(choices) + "x")


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ({"json": "{"}, "json is not a JSON schema"),
        ({"json": "[1]"}, "json must be a JSON schema, an object"),
        ({"json": {"const": object()}}, "json is not a JSON schema"),
        ({"json": {"const": float("nan")}}, "json is not a JSON schema"),
        ({"json": "[" * 100_000}, "nested too deeply"),
        ({"json": {"description": "\ud800"}}, "surrogate"),
        ({"json": {"description": "x" * MAX_GRAMMAR_BYTES}}, "1 to 1048576 bytes"),
        ({"choice": []}, "at least one text"),
        ({"choice": [5]}, "a list of texts"),
        ({"choice": ["x" * MAX_GRAMMAR_BYTES]}, "1 to 1048576 bytes"),
        ({"choice": ["\ud800"]}, "surrogate"),
        ({"regex": ""}, "1 to 1048576 bytes"),
        ({"regex": "a" * (MAX_GRAMMAR_BYTES + 1)}, "1 to 1048576 bytes"),
        ({"grammar": " " * (MAX_GRAMMAR_BYTES + 1)}, "1 to 1048576 bytes"),
        ({"grammar": "root ::= missing"}, "neither GBNF nor Lark: .*missing"),
        ({"grammar": "root ::= " + "(" * 5000}, "nested too deeply"),
        ({"grammar": "root ::= " + '"a" ' * MAX_GBNF_BYTES}, "in GBNF must be at most 32768 bytes"),
    ],
)
def test_what_is_no_form_is_refused(form: dict[str, Any], text: str) -> None:
    with pytest.raises(RequestError, match=text) as refused:
        grammar_text(StructuredOutputsParams(**form))
    assert refused.value.parameter == "structured_outputs"


def test_a_form_is_converted_once() -> None:
    form = resolve_constraint(StructuredOutputsParams(grammar=GBNF))
    assert form.grammar == grammar_text(form) == grammar_text(StructuredOutputsParams(grammar=GBNF)) != GBNF
    assert resolve_constraint(form) is form
    assert grammar_text(ResolvedConstraint(grammar=GBNF)) == GBNF


def test_what_only_a_compiler_can_see_is_left_to_it() -> None:
    assert grammar_text(StructuredOutputsParams(json={"type": "string", "pattern": "("})) != ""
    assert grammar_text(StructuredOutputsParams(regex="(")) != ""


@pytest.mark.parametrize("pattern", [r"^\d\w$", r"^[\d.][^\W]$"])
def test_a_schemas_pattern_has_the_classes_of_ecmascript(pattern: str) -> None:
    grammar = grammar_text(StructuredOutputsParams(json={"type": "string", "pattern": pattern}))
    assert takes(grammar, '"5a"')
    assert not takes(grammar, '"\u0663a"')
    assert not takes(grammar, '"5é"')
    spaces = grammar_text(StructuredOutputsParams(json={"type": "string", "pattern": r"^\s$"}))
    assert takes(spaces, '" "')
    assert takes(spaces, '"\u00a0"')


def test_a_choice_and_a_grammar_keep_their_text() -> None:
    assert takes(grammar_text(StructuredOutputsParams(choice=[r"\d"])), r"\d")
    assert takes(grammar_text(StructuredOutputsParams(grammar=r"start: /\d/")), "\u0663")
