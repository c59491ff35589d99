"""What may be compiled: grammars as people write them, and none that would hold up the others."""

import json
import random
import threading
from collections.abc import Callable

import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from pyllm.checkpoint import read_checkpoint
from pyllm.errors import RequestError
from pyllm.workers.grammar_compiler import MAX_WAITING, NUM_KEPT, GrammarCompiler, compile_grammar, error_text


@pytest.fixture(scope="module")
def tokenizer() -> LLTokenizer:
    checkpoint = read_checkpoint()
    return LLTokenizer(checkpoint.tokenizer.path, n_vocab=checkpoint.architecture.vocab_size, eos_token=[2])


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


def compiled(made: list[str], tokenizer: LLTokenizer) -> Callable[[str], LLMatcher]:
    def compile_one(text: str) -> LLMatcher:
        made.append(text)
        return compile_grammar(tokenizer, text)

    return compile_one


def test_the_grammars_used_last_are_kept(tokenizer: LLTokenizer) -> None:
    made: list[str] = []
    compiler = GrammarCompiler(compiled(made, tokenizer))
    first, second, *others = (f'start: "{number}"' for number in range(NUM_KEPT + 1))
    compiler.compile(first).result(60)
    compiler.compile(second).result(60)
    for text in others[:-1]:
        compiler.compile(text)
    compiler.compile(first)
    compiler.compile(others[-1]).result(60)
    assert len(made) == NUM_KEPT + 1
    compiler.compile(first).result(60)
    assert len(made) == NUM_KEPT + 1
    compiler.compile(second).result(60)
    assert made[-1] == second
    compiler.close()


def test_an_error_is_kept_as_well(tokenizer: LLTokenizer) -> None:
    made: list[str] = []
    compiler = GrammarCompiler(compiled(made, tokenizer))
    for _ in range(2):
        with pytest.raises(RequestError, match="the grammar does not compile"):
            compiler.compile("start: nothing").result(60)
    assert len(made) == 1
    compiler.close()


def test_a_grammar_is_copied_while_another_is_compiled(tokenizer: LLTokenizer) -> None:
    """The copies are made of what the other thread made, while that thread is in the library."""
    compiler = GrammarCompiler(lambda text: compile_grammar(tokenizer, text))
    original = compiler.compile(schema(enum=words(500))).result(60)
    mask = allocate_token_bitmask(1, tokenizer.vocab_size)
    fill_next_token_bitmask(original.deep_copy(), mask)
    others = [compiler.compile(schema(enum=words(1000 + number))) for number in range(10)]
    compiling = True
    while compiling:
        compiling = not all(other.done() for other in others)
        copied = allocate_token_bitmask(1, tokenizer.vocab_size)
        fill_next_token_bitmask(original.deep_copy(), copied)
        assert (copied == mask).all()
    compiler.close()


def test_no_more_wait_than_there_is_room_for() -> None:
    gate = threading.Event()

    def compile_one(text: str) -> LLMatcher:
        gate.wait(60)
        raise RequestError(text)

    compiler = GrammarCompiler(compile_one)
    futures = [compiler.compile(str(number)) for number in range(MAX_WAITING + 10)]
    refused = [future for future in futures if future.done()]
    gate.set()
    assert refused
    assert futures[-1] in refused
    assert "grammars wait" in str(futures[-1].exception())
    assert all(str(future.exception(60)) == str(number) for number, future in enumerate(futures[:MAX_WAITING]))
    assert compiler.compile("again").exception(60) is not None
    compiler.close()


def test_deep_grammars_do_not_end_the_process(tokenizer: LLTokenizer) -> None:
    links = {str(i): {"type": "object", "properties": {"a": {"$ref": f"#/$defs/{i + 1}"}}} for i in range(1000)}
    compiler = GrammarCompiler(lambda text: compile_grammar(tokenizer, text))
    mask = allocate_token_bitmask(1, tokenizer.vocab_size)
    for text in (
        schema(**{"$ref": "#/$defs/0", "$defs": links | {"1000": {}}}),
        "start: a0\n" + "\n".join(f"a{i}: a{i + 1}" for i in range(15_000)) + '\na15000: "y"',
    ):
        fill_next_token_bitmask(compiler.compile(text).result(60).deep_copy(), mask)
        assert 0 < np.bitwise_count(mask).sum() < 20
    compiler.close()
