"""Documents drawn at random from the masks of many JSON schemas, judged by `jsonschema`."""

import json
import random
from collections.abc import Iterator
from decimal import Decimal

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from llguidance import LLTokenizer

from pyllm.checkpoint.reader import read_checkpoint
from pyllm.frontend.text.structured_outputs import grammar_text
from pyllm.parameters.structured_outputs_params import StructuredOutputsParams
from pyllm.workers.grammar.token_masks import Grammars
from tests.schemas import FAMILIES, NUM_VARIANTS, SCHEMAS

MAX_TOKENS = 250


@pytest.fixture(scope="module")
def tokenizer() -> LLTokenizer:
    checkpoint = read_checkpoint()
    ends = list(checkpoint.tokenizer.eos_token_ids)
    return LLTokenizer(checkpoint.tokenizer.path, n_vocab=checkpoint.spec.vocab_size, eos_token=ends)


@pytest.fixture(scope="module")
def grammars(tokenizer: LLTokenizer) -> Iterator[Grammars]:
    grammars = Grammars(tokenizer)
    yield grammars
    grammars.close()


def draw(grammars: Grammars, text: str, chance: random.Random, end: int) -> list[int]:
    """Tokens that a grammar allows, to its end: forced ones as they come, of others any."""
    row, tokens = grammars.begin(text, []), []
    while True:
        assert row.wait(60)
        assert not row.error
        allowed = np.flatnonzero(np.unpackbits(row.mask.view(np.uint8), bitorder="little"))
        drawn = row.forced or [int(chance.choice(allowed))]
        tokens += drawn
        if drawn[-1] == end:
            return tokens[:-1]
        assert len(tokens) <= MAX_TOKENS, "it does not end"
        grammars.consume(row, drawn)


def test_there_are_two_hundred_distinct_schemas() -> None:
    assert len(SCHEMAS) == 200
    assert len({json.dumps(schema, sort_keys=True) for schema in SCHEMAS}) == 200


@pytest.mark.parametrize("family", range(len(FAMILIES)), ids=[family.__name__ for family in FAMILIES])
def test_what_the_masks_allow_follows_the_schema(grammars: Grammars, tokenizer: LLTokenizer, family: int) -> None:
    for variant in range(NUM_VARIANTS):
        content = json.dumps(SCHEMAS[NUM_VARIANTS * family + variant], ensure_ascii=False)
        # Binary fractions would not be multiples of 0.01.
        schema = json.loads(content, parse_float=Decimal)
        Draft202012Validator.check_schema(schema)
        validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
        text = grammar_text(StructuredOutputsParams(json=content))
        for seed in range(2):
            tokens = draw(grammars, text, random.Random(seed), tokenizer.eos_token)
            document = tokenizer.decode_bytes(tokens).decode()
            validator.validate(json.loads(document, parse_float=Decimal))
