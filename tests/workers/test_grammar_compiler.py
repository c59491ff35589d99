"""What may be compiled: grammars as people write them, and none that would hold up the others."""

import json
import random
import re
import subprocess
import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from pyllm.checkpoint import read_checkpoint
from pyllm.errors import RequestError
from pyllm.workers.grammar_compiler import (
    COMPILE_SECONDS,
    MAX_STUCK,
    NUM_KEPT,
    GrammarCompiler,
    compile_grammar,
    error_text,
)

PATIENT = 60.0


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


def finish(compiler: GrammarCompiler, text: str) -> LLMatcher:
    compilation = compiler.compile(text)  # To be held until it is done.
    return compilation.future.result(PATIENT)


def test_the_grammars_used_last_are_kept(tokenizer: LLTokenizer) -> None:
    made: list[str] = []
    compiler = GrammarCompiler(compiled(made, tokenizer))
    first, second, *others = (f'start: "{number}"' for number in range(NUM_KEPT + 1))
    for text in (first, second, *others[:-1], first, others[-1]):
        finish(compiler, text)
    assert made == [first, second, *others]
    finish(compiler, first)
    assert len(made) == NUM_KEPT + 1
    finish(compiler, second)
    assert made[-1] == second
    compiler.close()


def test_an_error_is_kept_as_well(tokenizer: LLTokenizer) -> None:
    made: list[str] = []
    compiler = GrammarCompiler(compiled(made, tokenizer))
    for _ in range(2):
        with pytest.raises(RequestError, match="the grammar does not compile"):
            finish(compiler, "start: nothing")
    assert len(made) == 1
    compiler.close()


def test_a_grammar_is_copied_while_another_is_compiled(tokenizer: LLTokenizer) -> None:
    """The copies are made of what the other thread made, while that thread is in the library."""
    go_on = threading.Semaphore(1)

    def compile_one(text: str) -> LLMatcher:
        assert go_on.acquire(timeout=PATIENT)
        return compile_grammar(tokenizer, text)

    compiler = GrammarCompiler(compile_one)
    original = finish(compiler, schema(enum=words(500)))
    mask = allocate_token_bitmask(1, tokenizer.vocab_size)
    fill_next_token_bitmask(original.deep_copy(), mask)
    for number in range(10):
        other = compiler.compile(schema(enum=words(1000 + number)))
        assert not other.future.done()
        go_on.release()
        is_compiled = False
        while not is_compiled:
            is_compiled = other.future.done()
            copied = allocate_token_bitmask(1, tokenizer.vocab_size)
            fill_next_token_bitmask(original.deep_copy(), copied)
            assert (copied == mask).all()
    compiler.close()


def test_deep_grammars_do_not_end_the_process(tokenizer: LLTokenizer) -> None:
    links = {str(i): {"type": "object", "properties": {"a": {"$ref": f"#/$defs/{i + 1}"}}} for i in range(1000)}
    compiler = GrammarCompiler(lambda text: compile_grammar(tokenizer, text))
    mask = allocate_token_bitmask(1, tokenizer.vocab_size)
    for text in (
        schema(**{"$ref": "#/$defs/0", "$defs": links | {"1000": {}}}),
        "start: a0\n" + "\n".join(f"a{i}: a{i + 1}" for i in range(15_000)) + '\na15000: "y"',
    ):
        fill_next_token_bitmask(finish(compiler, text).deep_copy(), mask)
        assert 0 < np.bitwise_count(mask).sum() < 20
    compiler.close()


class Stuck:
    """Compiles nothing until a test lets it, and remembers what it was asked for."""

    def __init__(self, tokenizer: LLTokenizer) -> None:
        self.asked: list[str] = []
        self.begun, self.go_on = threading.Semaphore(0), threading.Semaphore(0)
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> LLMatcher:
        self.asked.append(text)
        self.begun.release()
        assert self.go_on.acquire(timeout=PATIENT)
        return compile_grammar(self._tokenizer, text)


def test_no_grammar_is_compiled_while_some_are_stuck(tokenizer: LLTokenizer) -> None:
    stuck, now = Stuck(tokenizer), [0.0]
    compiler = GrammarCompiler(stuck, lambda: now[0])
    first, *others = (compiler.compile(f'start: "{number}"') for number in range(MAX_STUCK + 1))
    for _ in range(MAX_STUCK):
        assert stuck.begun.acquire(timeout=PATIENT)
        now[0] += COMPILE_SECONDS + 1
        compiler.give_up_late()
    with pytest.raises(RequestError, match="was not compiled within 10 s; make it simpler"):
        first.future.result(0)
    for refused in (others[-1], compiler.compile("start: /a/")):
        with pytest.raises(RequestError, match=r"4 grammars were not compiled .* try again later"):
            refused.future.result(0)
    threads = [thread for thread in threading.enumerate() if thread.name == "compile-grammars"]
    stuck.go_on.release(MAX_STUCK + 1)
    for thread in threads:
        thread.join(PATIENT)
    assert not finish(compiler, "start: /a/").is_error()
    assert len(stuck.asked) == MAX_STUCK + 1
    compiler.close()


def test_what_waits_is_compiled_once_however_much_is_compiled_meanwhile(tokenizer: LLTokenizer) -> None:
    stuck = Stuck(tokenizer)
    compiler = GrammarCompiler(stuck)
    texts = [f'start: "{number}"' for number in range(NUM_KEPT + 2)]
    waiting = [compiler.compile(text) for text in texts]
    assert [compiler.compile(text) for text in texts] == waiting
    stuck.go_on.release(len(texts))
    assert waiting[-1].future.result(PATIENT)
    assert stuck.asked == texts
    compiler.close()


def test_a_thread_that_cannot_be_started_fails_the_grammar_alone() -> None:
    program = """
import resource, threading
from pathlib import Path
from pyllm.workers.grammar_compiler import GrammarCompiler
compiler = GrammarCompiler(lambda text: text)
stack_size, limits = threading.stack_size(), resource.getrlimit(resource.RLIMIT_AS)
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 29), limits[1]))  # No room for the thread's stack.
refused = compiler.compile("text")
resource.setrlimit(resource.RLIMIT_AS, limits)
print(refused.future.exception(0))
assert threading.stack_size() == stack_size
compiled = compiler.compile("text")
print(compiled.future.result(60))
"""
    ran = subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENT, capture_output=True, text=True)
    assert re.fullmatch(r"no thread could be started to compile .*; try again later\ntext\n", ran.stdout)


def test_a_stuck_grammar_lets_its_process_end() -> None:
    program = """
import threading
from pyllm.workers.grammar_compiler import GrammarCompiler
begun = threading.Event()
def compile_one(text):
    begun.set()
    threading.Event().wait()
compilation = GrammarCompiler(compile_one).compile("")
begun.wait()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENT)
