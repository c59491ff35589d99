"""What may be compiled: grammars as people write them, and none whose masks would hold up the others."""

import json
import random

import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from pyllm.checkpoint.reader import read_checkpoint
from pyllm.workers.grammar.grammar_compiler import compile_grammar, error_text


@pytest.fixture(scope="module")
def tokenizer() -> LLTokenizer:
    checkpoint = read_checkpoint()
    return LLTokenizer(checkpoint.tokenizer.path, n_vocab=checkpoint.spec.vocab_size, eos_token=[2])


def schema(**fields: object) -> str:
    return LLMatcher.grammar_from_json_schema(json.dumps(fields), defaults={"whitespace_flexible": False})


def fields(number: int, of: dict[str, object]) -> dict[str, object]:
    return {f"field_number_{index}": of for index in range(number)}


def words(number: int) -> list[str]:
    chance = random.Random(0)
    return ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz -_", k=chance.randint(5, 60))) for _ in range(number)]


def nested(depth: int) -> dict[str, object]:
    if not depth:
        return {"type": "integer"}
    return {"type": "object", "properties": {"a": nested(depth - 1), "b": {"type": "string"}}, "required": ["a"]}


def steps(tokenizer: LLTokenizer, text: str, number: int = 60) -> tuple[int, str]:
    """How many random tokens a grammar took, at most `number`, and why no more; forced ones are jumped over."""
    matcher = compile_grammar(tokenizer, text).deep_copy()
    mask = allocate_token_bitmask(1, tokenizer.vocab_size)
    chance = random.Random(0)
    for step in range(number):
        fill_next_token_bitmask(matcher, mask)
        if matcher.is_error() or matcher.is_stopped():
            return step, error_text(matcher)
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        if len(allowed) > 1:
            allowed = allowed[allowed != tokenizer.eos_token]
        matcher.consume_tokens(matcher.compute_ff_tokens() or [int(chance.choice(allowed))])
    return number, error_text(matcher)


@pytest.mark.parametrize(
    "text",
    [
        schema(type="object", properties=fields(1200, {"type": "integer"})),
        schema(type="object", properties=fields(1000, {"type": "string"}), additionalProperties=False),
        schema(type="object", properties=fields(500, {"type": "object", "properties": fields(10, {})})),
        schema(type="object", properties=fields(3000, {}), required=list(fields(3000, {}))),
        schema(enum=words(5000)),
        schema(**nested(60)),
        schema(anyOf=[nested(3) | {"title": str(index)} for index in range(300)]),
        schema(type="string", maxLength=100_000),
        schema(type="array", items={"type": "string", "maxLength": 500}, maxItems=10_000),
        schema(type="number", minimum=0, maximum=1e6, multipleOf=0.01),
        schema(type="integer", multipleOf=9973),
        schema(allOf=[{"type": "string", "pattern": p} for p in ("[A-Z]", "[0-9]", "[a-z]")] + [{"maxLength": 30}]),
        LLMatcher.grammar_from_regex("|".join(words(5000))),
        LLMatcher.grammar_from_regex(r"(\w+ ){1,1000}\w+"),
        LLMatcher.grammar_from_regex(r"(([A-Z][a-z]{1,20})( [a-z]{1,20}){1,30}\. ){1,300}"),
        "start: CHOICE\nCHOICE: " + " | ".join(map(json.dumps, words(5000))),
        'start: sum\nsum: sum "+" term | term\nterm: term "*" part | part\npart: /[0-9]+/ | "(" sum ")"',
    ],
    ids=[
        "many-optional",
        "many-closed",
        "many-objects",
        "many-required",
        "enumeration",
        "deep",
        "kinds",
        "long-text",
        "long-list",
        "money",
        "multiples",
        "password",
        "words-regex",
        "words",
        "sentences",
        "choice",
        "sums",
    ],
)
def test_large_grammars_are_served(tokenizer: LLTokenizer, text: str) -> None:
    taken, error = steps(tokenizer, text)
    assert error == ""
    assert taken > 0


@pytest.mark.parametrize(
    "text",
    [
        LLMatcher.grammar_from_regex("a{100000}"),
        LLMatcher.grammar_from_regex("[bc]((a{100}){100}){100}"),
        LLMatcher.grammar_from_regex("(a?){500}a{500}"),
        LLMatcher.grammar_from_regex("(.{0,50}a){50}"),
        'start: x{100000}\nx: "ab"',
        'start: s\ns: s s s | s s | "a" | "b" | ""',
        'start: s\ns: s s s s | s s s | s s | "a"',
        "start: A\nA: /[a-z]{1,200}/ & ~/.*(foo|bar).*/ & /.*z.{100}/",
        "start: a0\n" + "\n".join(f'a{i}: a{i + 1} | a{i + 1} "x" a{i + 1}' for i in range(300)) + '\na300: "y"',
        "start: " + " | ".join(map(json.dumps, words(5000))),
        schema(const="lorem ipsum " * 40_000),
        schema(type="object", properties=fields(2000, {}), required=["field_number_1999"]),
    ],
    ids=[
        "repeat",
        "repeats",
        "later-repeats",
        "optional-repeats",
        "alternatives",
        "ambiguous",
        "more-ambiguous",
        "intersection",
        "doubling",
        "choice-of-rules",
        "constant",
        "many-optional",
    ],
)
def test_grammars_that_cost_too_much_end_in_an_error(tokenizer: LLTokenizer, text: str) -> None:
    taken, error = steps(tokenizer, text, 400)
    assert taken < 400
    assert "too many" in error.lower() or "max is" in error
