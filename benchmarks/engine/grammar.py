"""The cost of a grammar per row and token, over the embedded model's vocabulary, with JSON schemas of the tests.

Each token is a random allowed one, so that strings are long and odd, and cost more than a model's output.
"""

import json
import random
import time
from collections.abc import Iterator

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from benchmarks.record import Record, percentiles
from pyllm.checkpoint.reader import read_checkpoint
from pyllm.workers.grammar.grammar_compiler import compile_grammar
from pyllm.workers.grammar.token_masks import Grammars
from pyllm.workers.grammar.trial_process import GrammarTrials, TrialConfig
from tests.schemas import SCHEMAS

ROUNDS = 3
ROWS = 64


def run() -> Iterator[Record]:
    checkpoint = read_checkpoint()
    ends = list(checkpoint.tokenizer.eos_token_ids)
    tokenizer = LLTokenizer(checkpoint.tokenizer.path, n_vocab=checkpoint.spec.vocab_size, eos_token=ends)
    texts = [
        LLMatcher.grammar_from_json_schema(json.dumps(s), defaults={"whitespace_flexible": False}) for s in SCHEMAS
    ]
    compile_seconds = []
    for text in texts:
        began = time.perf_counter()
        compile_grammar(tokenizer, text)
        compile_seconds.append(time.perf_counter() - began)
    yield percentiles("grammar.compile_us", compile_seconds)
    config = TrialConfig(checkpoint.tokenizer.path, checkpoint.spec.vocab_size, tuple(ends))
    yield percentiles("grammar.tried_compile_us", _trials(config, tokenizer, texts))

    grammars = Grammars(tokenizer)
    seconds, num_tokens, num_jumped = _walk(grammars, texts)
    yield percentiles("grammar.mask_us", seconds, tokens=num_tokens)
    yield {"name": "grammar.jumped_share", "value": round(num_jumped / num_tokens, 3), "tokens": num_tokens}
    yield percentiles("grammar.step_us", _steps(grammars, texts[:ROWS]), rows=ROWS)
    grammars.close()


def _trials(config: TrialConfig, tokenizer: LLTokenizer, texts: list[str]) -> list[float]:
    """Seconds to compile the same grammars if another, warm process compiles them first."""
    trials, seconds = GrammarTrials(config), []
    trials.compile(tokenizer, texts[0])
    for text in texts:
        began = time.perf_counter()
        trials.compile(tokenizer, text)
        seconds.append(time.perf_counter() - began)
    trials.close()
    return seconds


def _walk(grammars: Grammars, texts: list[str]) -> tuple[list[float], int, int]:
    """Seconds from tokens to the next mask; the number of tokens, and of tokens without a step of a model."""
    seconds, num_tokens, num_jumped = [], 0, 0
    for seed in range(ROUNDS):
        chance = random.Random(seed)
        for text in texts:
            row = grammars.begin(text, [])
            row.wait(60)
            while not row.error and row.matcher is not None and not row.matcher.is_stopped():
                drawn = _draw(row.mask, row.forced, chance)
                num_tokens += len(drawn)
                num_jumped += len(drawn) - 1
                began = time.perf_counter()
                grammars._move(row, drawn)  # Like the mask thread; waking a thread would double the time.
                seconds.append(time.perf_counter() - began)
    return seconds, num_tokens, num_jumped


def _steps(grammars: Grammars, texts: list[str]) -> list[float]:
    """Seconds of steps of many rows, from their tokens to all of their masks."""
    chance, seconds = random.Random(0), []
    rows = [grammars.begin(text, []) for text in texts]
    for _ in range(200):
        drawn = []
        for index, text in enumerate(texts):
            rows[index].wait(60)
            matcher = rows[index].matcher
            if matcher is None or matcher.is_stopped():
                rows[index] = grammars.begin(text, [])
                rows[index].wait(60)
            drawn.append(_draw(rows[index].mask, rows[index].forced, chance))
        began = time.perf_counter()
        for row, tokens in zip(rows, drawn, strict=True):
            grammars.consume(row, tokens)
        for row in rows:
            row.wait(60)
        seconds.append(time.perf_counter() - began)
    return seconds


def _draw(mask: np.ndarray, forced: list[int], chance: random.Random) -> list[int]:
    return forced or [int(chance.choice(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))))]
