"""Rows that move through grammars, over the embedded model's tokenizer and over one of bytes."""

import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from pyllm.checkpoint.reader import read_checkpoint
from pyllm.errors import ConfigError
from pyllm.workers.grammar.grammar_compiler import compile_grammar
from pyllm.workers.grammar.token_masks import MASK_SECONDS, GrammarRow, Grammars, Mask
from tests.tiny_model import write_tiny_model

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 9},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
TEXTS = [
    LLMatcher.grammar_from_json_schema(json.dumps(PERSON), defaults={"whitespace_flexible": False}),
    LLMatcher.grammar_from_json_schema('{"enum": ["left", "leftmost", 1, 12, null, [true]]}'),
    LLMatcher.grammar_from_regex(r"[a-z]{2,5}@[a-z]{2,5}\.(com|org)"),
    'start: "the answer is " NUMBER "."\nNUMBER: /[0-9]{1,3}/',
    'start: sum\nsum: sum "+" sum | "(" sum ")" | /[0-9]{1,2}/',
]
PATIENT = 60.0


@pytest.fixture(scope="module")
def embedded() -> LLTokenizer:
    return load_tokenizer("")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> LLTokenizer:
    return load_tokenizer(write_tiny_model(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module", params=["embedded", "tiny"])
def tokenizer(request: pytest.FixtureRequest) -> LLTokenizer:
    tokenizer: LLTokenizer = request.getfixturevalue(request.param)
    return tokenizer


@pytest.fixture(scope="module")
def grammars(tokenizer: LLTokenizer) -> Iterator[Grammars]:
    grammars = Grammars(tokenizer)
    yield grammars
    grammars.close()


def load_tokenizer(model: str) -> LLTokenizer:
    checkpoint = read_checkpoint(model)
    ends = list(checkpoint.tokenizer.eos_token_ids)
    return LLTokenizer(checkpoint.tokenizer.path, n_vocab=checkpoint.spec.vocab_size, eos_token=ends)


def allowed(mask: Mask) -> list[int]:
    """The tokens that a mask has."""
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


def ready(row: GrammarRow) -> GrammarRow:
    assert row.wait(PATIENT)
    return row


def state(row: GrammarRow) -> tuple[list[int], list[int], str]:
    ready(row)
    return allowed(row.mask), row.forced, row.error


def walk(grammars: Grammars, tokenizer: LLTokenizer, text: str, seed: int, num_tokens: int = 60) -> list[int]:
    """Some tokens that follow a grammar, chosen at random, to its end if that comes soon."""
    chance = random.Random(seed)
    row, tokens = grammars.begin(text, []), []
    while len(tokens) < num_tokens:
        ready(row)
        assert not row.error
        token = chance.choice(allowed(row.mask))
        tokens.append(token)
        if token in tokenizer.eos_tokens:
            break
        grammars.consume(row, [token])
    return tokens


@pytest.mark.parametrize("text", TEXTS)
@settings(max_examples=8)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_row_resumes_where_single_tokens_lead(
    grammars: Grammars, tokenizer: LLTokenizer, text: str, seed: int
) -> None:
    tokens = walk(grammars, tokenizer, text, seed)
    row = grammars.begin(text, [])
    for place in range(len(tokens) + 1):
        assert state(row) == state(grammars.begin(text, tokens[:place]))
        grammars.consume(row, tokens[place : place + 1])


@pytest.mark.parametrize("text", TEXTS)
@settings(max_examples=8)
@given(seed=st.integers(0, 2**32 - 1))
def test_what_is_forced_is_all_that_the_mask_allows(
    grammars: Grammars, tokenizer: LLTokenizer, text: str, seed: int
) -> None:
    row = ready(grammars.begin(text, []))
    for token in walk(grammars, tokenizer, text, seed):
        assert row.matcher is not None
        untouched = allocate_token_bitmask(1, tokenizer.vocab_size)
        fill_next_token_bitmask(row.matcher.deep_copy(), untouched)
        tokens = allowed(row.mask)
        assert set(tokens) <= set(allowed(untouched))
        assert (len(tokens) == 1) == bool(row.forced)
        if row.forced:
            assert tokens == row.forced[:1]
            jumped = grammars.fork(row)
            grammars.consume(jumped, row.forced)
            assert not ready(jumped).error
        else:
            assert tokens == allowed(untouched)
        grammars.consume(row, [token])
        ready(row)


def test_a_mask_allows_what_the_grammar_does(tiny: LLTokenizer) -> None:
    grammars = Grammars(tiny)
    row = grammars.begin(LLMatcher.grammar_from_regex("[ab]c?"), [])
    assert state(row) == (sorted([ord("a"), ord("b")]), [], "")
    grammars.consume(row, [ord("a")])
    assert state(row) == (sorted([ord("c"), tiny.eos_token]), [], "")
    grammars.consume(row, [ord("c")])
    assert state(row) == ([tiny.eos_token], [tiny.eos_token], "")
    grammars.close()


def test_the_end_forces_the_end_of_the_sequence_again_and_again(grammars: Grammars, tokenizer: LLTokenizer) -> None:
    end = tokenizer.eos_token
    row = grammars.begin("start: /a?/", [])
    for _ in range(3):
        grammars.consume(row, [end])
        assert state(row) == ([end], [end], "")
    assert state(grammars.begin("start: /a?/", [end, end])) == ([end], [end], "")
    grammars.consume(row, [end, 5])
    assert "goes on after its grammar has ended" in ready(row).error


def test_every_end_of_sequence_token_ends(tmp_path: Path) -> None:
    path = read_checkpoint(write_tiny_model(tmp_path)).tokenizer.path
    grammars = Grammars.load(path, 290, (257, 256))
    row = grammars.begin('start: "a"', [ord("a")])
    assert state(row)[0] == [256, 257]
    grammars.consume(row, [256, 257])
    assert not ready(row).error
    grammars.close()


@pytest.mark.parametrize("text", TEXTS)
def test_a_fork_goes_its_own_way(grammars: Grammars, tokenizer: LLTokenizer, text: str) -> None:
    tokens = walk(grammars, tokenizer, text, 7)
    half = len(tokens) // 2
    origin = grammars.begin(text, [])
    grammars.consume(origin, tokens[:half])
    fork = grammars.fork(origin)  # Nothing that was asked of the origin needs to be done yet.
    grammars.consume(origin, tokens[half:])
    assert state(fork) == state(grammars.begin(text, tokens[:half]))
    after = state(origin)
    grammars.consume(fork, [0])
    ready(fork)
    assert state(origin) == after == state(grammars.begin(text, tokens))


def test_a_fork_of_a_row_that_has_failed_has_failed(grammars: Grammars) -> None:
    row = grammars.begin("start: nothing", [])
    fork = grammars.fork(row)
    assert "does not compile" in ready(fork).error
    assert fork.error == ready(row).error


@pytest.mark.parametrize("text", TEXTS)
def test_masks_after_drafts_are_those_after_the_same_tokens(
    grammars: Grammars, tokenizer: LLTokenizer, text: str
) -> None:
    tokens = walk(grammars, tokenizer, text, 3)
    row = ready(grammars.begin(text, []))
    before = state(row)
    masks = grammars.masks_after(row, tokens)
    assert [allowed(mask) for mask in masks] == [
        state(grammars.begin(text, tokens[: place + 1]))[0] for place in range(len(tokens))
    ]
    wrong = next(token for token in range(256) if token not in before[0])
    assert len(grammars.masks_after(row, [*tokens[:1], *[wrong] * 2, *tokens])) <= 2
    assert grammars.masks_after(row, []) == []
    assert state(row) == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("start: nothing", "nothing"),
        ("", "does not compile"),
        (LLMatcher.grammar_from_regex("a("), "regex"),
        (LLMatcher.grammar_from_json_schema('{"type": "nothing"}'), "nothing"),
        (LLMatcher.grammar_from_json_schema('{"$ref": "#/$defs/nothing"}'), "nothing"),
        (LLMatcher.grammar_from_json_schema('{"allOf": [{"type": "integer"}, {"type": "string"}]}'), "nsatisfiable"),
    ],
)
def test_a_bad_grammar_says_what_is_wrong(grammars: Grammars, text: str, said: str) -> None:
    row = ready(grammars.begin(text, []))
    assert "the grammar does not compile" in row.error
    assert said in row.error
    assert "non-verbose" not in row.error
    assert len(row.error) < 600
    grammars.consume(row, [1])  # What comes after that changes nothing.
    assert "the grammar does not compile" in ready(row).error


def test_tokens_that_do_not_follow_end_the_row(grammars: Grammars) -> None:
    text = LLMatcher.grammar_from_regex("[0-9]+")
    row = grammars.begin(text, [ord("x")])
    assert "its grammar failed" in ready(row).error
    row = ready(grammars.begin(text, []))
    grammars.consume(row, [allowed(row.mask)[0], ord("x")])
    assert "its grammar failed" in ready(row).error
    assert not ready(grammars.begin(text, [])).error


def test_a_model_without_an_end_or_a_tokenizer_has_no_grammars(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no end-of-sequence token"):
        Grammars.load("", 290, ())
    with pytest.raises(ConfigError, match=r"cannot use the tokenizer .*nowhere\.json"):
        Grammars.load(str(tmp_path / "nowhere.json"), 290, (1,))


class Held:
    """Compiles what a test lets it, and remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.begun, self.go_on = threading.Semaphore(0), threading.Semaphore(0)

    def __call__(self, tokenizer: LLTokenizer, text: str) -> LLMatcher:
        self.asked.append(text)
        self.begun.release()
        assert self.go_on.acquire(timeout=PATIENT)
        return compile_grammar(tokenizer, text)


def test_rows_share_one_compilation(tiny: LLTokenizer) -> None:
    held = Held()
    grammars = Grammars(tiny, held)
    rows = [grammars.begin(TEXTS[0], []) for _ in range(3)]
    assert not rows[0].wait(0)
    held.go_on.release()
    assert state(rows[0]) == state(rows[1]) == state(rows[2]) == state(grammars.begin(TEXTS[0], []))
    assert held.asked == TEXTS[:1]
    grammars.close()


def test_what_is_asked_before_a_grammar_is_there_is_done_in_its_order(tiny: LLTokenizer) -> None:
    held = Held()
    grammars = Grammars(tiny, held)
    row = grammars.begin(TEXTS[2], [ord("a")])
    grammars.consume(row, [ord("b")])
    fork = grammars.fork(row)
    grammars.consume(row, [ord("@")])
    grammars.consume(fork, [ord("c")])
    assert not row.wait(0)
    assert not fork.wait(0)
    held.go_on.release()
    assert state(row) == state(grammars.begin(TEXTS[2], list(b"ab@")))
    assert state(fork) == state(grammars.begin(TEXTS[2], list(b"abc")))
    grammars.close()


def test_rows_go_on_while_another_grammar_is_compiled(tiny: LLTokenizer) -> None:
    held = Held()
    grammars = Grammars(tiny, held)
    held.go_on.release()
    ready(grammars.begin(TEXTS[0], []))
    slow = grammars.begin(TEXTS[1], [])
    assert held.begun.acquire(timeout=PATIENT)
    assert held.begun.acquire(timeout=PATIENT)
    tokens = list(b'{"name":"x","age":3}')
    row = grammars.begin(TEXTS[0], tokens[:5])  # Copied from what was compiled, while the other is not.
    grammars.consume(row, tokens[5:])
    assert state(row) == ([tiny.eos_token], [tiny.eos_token], "")
    assert not slow.wait(0)
    held.go_on.release()
    assert not ready(slow).error
    grammars.close()


class Clock:
    """Tells what a test says, each time it is asked; then always the last."""

    def __init__(self, *times: float) -> None:
        self.times = list(times)

    def __call__(self) -> float:
        return self.times.pop(0) if len(self.times) > 1 else self.times[0]


def test_a_mask_that_takes_too_long_fails_its_own_row(tiny: LLTokenizer) -> None:
    slow = MASK_SECONDS + 0.5
    grammars = Grammars(tiny, clock=Clock(0, MASK_SECONDS, 0, slow))
    in_time = ready(grammars.begin(TEXTS[3], []))
    late = ready(grammars.begin(TEXTS[3], []))
    assert not in_time.error
    assert late.error == "its grammar took 2.5 s for one token; 2 s are most: make it simpler"
    grammars.consume(in_time, in_time.forced)
    assert not ready(in_time).error
    grammars.close()


def test_closing_waits_for_nothing(tiny: LLTokenizer) -> None:
    held = Held()
    grammars = Grammars(tiny, held)
    row = grammars.begin(TEXTS[0], [])
    assert held.begun.acquire(timeout=PATIENT)
    grammars.close()
    assert not row.wait(0)
    held.go_on.release()
    for thread in threading.enumerate():
        if thread.name == "compile-grammars":
            thread.join(PATIENT)
    assert not row.wait(0)


def test_a_grammar_that_no_row_wants_any_more_is_not_compiled(tiny: LLTokenizer) -> None:
    held = Held()
    grammars = Grammars(tiny, held)
    first = grammars.begin(TEXTS[0], [])
    assert held.begun.acquire(timeout=PATIENT)
    ended, origin = (grammars.begin(text, []) for text in TEXTS[1:3])
    grammars.consume(ended, [1])
    fork = grammars.fork(origin)
    del ended, origin  # The fork still wants what its origin wanted.
    held.go_on.release(3)
    assert not ready(first).error
    assert state(fork) == state(grammars.begin(TEXTS[2], []))
    assert held.asked == [TEXTS[0], TEXTS[2]]
    grammars.close()


def test_a_copy_that_cannot_be_made_is_the_error_of_the_row_and_of_its_forks(tiny: LLTokenizer) -> None:
    class NoMemory:
        def deep_copy(self) -> LLMatcher:
            raise MemoryError("there is no more")

    grammars = Grammars(tiny, lambda _tokenizer, _text: cast(LLMatcher, NoMemory()))
    row = grammars.begin(TEXTS[0], [])
    for either in (grammars.fork(row), row):
        assert ready(either).error == "its grammar failed: there is no more"
    grammars.close()
