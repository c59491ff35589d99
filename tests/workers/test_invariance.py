"""The logits of a token are bitwise the same however its sequence was cut into steps, and whatever stood beside it."""

import random
from collections.abc import Iterator

import numpy as np
import pyllm_kernels
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyllm_kernels.tensors import Array

from pyllm.workers.model_runner import ModelRunner
from tests.plans import Planner, Row
from tests.tiers import full
from tests.tiny_model import write_tiny_model
from tests.workers.engine import loaded_runner, run

NUM_TOKENS = 90
NUM_BLOCKS = 128
SEQUENCES = [random.Random(number).sample(range(1000), NUM_TOKENS) for number in range(6)]
# Large enough that linears have several tiles, and a rest, in each direction.
SHAPE = {"hidden_size": 208, "intermediate_size": 336, "head_dim": 32, "vocab_size": 1000, "layers": 3}
PRECISIONS: dict[str, dict[str, str]] = {
    "float32": {},
    "int8": {"quantization": "int8", "kv_cache_dtype": "bfloat16"},
    "gguf": {"quantization": "gguf", "dtype": "bfloat16"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8 of bfloat16": {"quantization": "int8", "dtype": "bfloat16"},
}


@pytest.fixture(scope="module", params=["float32", full("gguf"), "bfloat16", "int8", "int8 of bfloat16"])
def runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelRunner]:
    """The embedded model as it is, in blocks of 4 bits, and a tiny one in other precisions."""
    is_embedded = request.param == "gguf"
    model = "" if is_embedded else write_tiny_model(tmp_path_factory.mktemp("model"), **SHAPE)
    yield loaded_runner(model, num_blocks=NUM_BLOCKS, **PRECISIONS[request.param])
    pyllm_kernels.set_num_threads(1)


@pytest.fixture(scope="module")
def expected(runner: ModelRunner) -> list[Array]:
    """The logits after each sequence, computed alone and at once."""
    return [logits(runner, [[Row(0, sequence)]], [0])[0] for sequence in SEQUENCES]


def logits(runner: ModelRunner, steps: list[list[Row]], slots: list[int]) -> list[Array]:
    """The last logits of each of the slots, after the steps."""
    planner = Planner(num_blocks=NUM_BLOCKS)
    for slot in sorted({row.slot for rows in steps for row in rows}):
        planner.start(slot)
    last: dict[int, Array] = {}
    kept: list[Array] = []
    compute = runner.logits

    def keep(hidden: Array, wanted: Array) -> Array | None:
        values = compute(hidden, wanted)
        assert values is not None, "there is one rank"
        kept[:] = values.copy()
        return values

    runner.logits = keep  # type: ignore[method-assign]
    try:
        for rows in steps:
            run(runner, planner.step(*rows))
            last |= {row.slot: values for row, values in zip(rows, kept, strict=True)}
    finally:
        runner.logits = compute  # type: ignore[method-assign]
    return [last[slot] for slot in slots]


def schedule(seed: int) -> list[list[Row]]:
    """Steps in which every sequence comes in chunks of its own, now and then left out of one."""
    generator = random.Random(seed)
    left = {slot: list(sequence) for slot, sequence in enumerate(SEQUENCES)}
    steps = []
    while left:
        rows = []
        for slot in list(left):
            size = generator.choice([0, 1, 2, 17, 40, NUM_TOKENS])
            if size:
                rows.append(Row(slot, left[slot][:size]))
                left[slot] = left[slot][size:]
                if not left[slot]:
                    del left[slot]
        if rows:
            steps.append(rows)
    return steps


@settings(max_examples=4)
@given(seed=st.integers(0, 1 << 32), num_threads=st.sampled_from([1, 2, 3]))
def test_logits_are_those_of_the_sequence_alone(
    runner: ModelRunner, expected: list[Array], seed: int, num_threads: int
) -> None:
    pyllm_kernels.set_num_threads(num_threads)
    found = logits(runner, schedule(seed), list(range(len(SEQUENCES))))
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))
