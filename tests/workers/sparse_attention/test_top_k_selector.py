"""Sparse attention in a runner: a token of an output reads the same blocks in any step, batch and cache."""

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import numpy as np
import pyllm_kernels
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyllm_kernels.tensors import Array

from pyllm.workers.layers.attention import PagedAttention
from pyllm.workers.model_runner import ModelRunner
from pyllm.workers.sparse_attention.top_k_selector import TopKSelector
from tests.families.tiny_families import write_tiny_family
from tests.plans import Planner, Row
from tests.tiny_model import write_tiny_model
from tests.workers.engine import loaded_runner, run

BLOCK_SIZE = 4
NUM_BLOCKS = 256
PROMPT_LENGTHS = [37, 8, 20, 64]
# A prompt, and then an output as if it had been sampled.
SEQUENCES = [random.Random(length).choices(range(256), k=length + 40) for length in PROMPT_LENGTHS]
# Of at least 9 blocks four are read.
SPARSE = {
    "sparse_attention_top_k": 2,
    "sparse_attention_sink_blocks": 1,
    "sparse_attention_recent_blocks": 1,
    "sparse_attention_dense_layers": 1,
}
CASES = {
    "quest": {"sparse_attention": "quest", "dtype": "float32"},
    "mean": {"sparse_attention": "mean", "dtype": "float32"},
    "quest in int8": {"sparse_attention": "quest", "quantization": "int8", "kv_cache_dtype": "bfloat16"},
    "mean in bfloat16": {"sparse_attention": "mean", "dtype": "bfloat16"},
    "quest without graphs": {"sparse_attention": "quest", "enforce_eager": True},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model", layers=3)


def sparse_runner(model: str, **options: object) -> ModelRunner:
    return loaded_runner(model, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, **(SPARSE | options))


@pytest.fixture(scope="module", params=CASES)
def runner(model: str, request: pytest.FixtureRequest) -> Iterator[ModelRunner]:
    yield sparse_runner(model, **CASES[request.param])
    pyllm_kernels.set_num_threads(1)


def logits(runner: ModelRunner, planner: Planner, steps: list[list[Row]]) -> dict[int, list[Array]]:
    """By slot, the logits after each row of the steps."""
    found: dict[int, list[Array]] = {}
    compute = runner.logits

    def keep(hidden: Array, wanted: Array) -> Array | None:
        values = compute(hidden, wanted)
        assert values is not None, "there is one rank"
        for row, of_row in zip(rows, values.copy(), strict=True):
            found.setdefault(row.slot, []).append(of_row)
        return values

    runner.logits = keep  # type: ignore[method-assign]
    try:
        for rows in steps:
            run(runner, planner.step(*rows))
    finally:
        runner.logits = compute  # type: ignore[method-assign]
    return found


def planner_of(slots: dict[int, int], **options: int) -> Planner:
    """With slots whose prompts are so long."""
    planner = Planner(num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, **options)
    for slot, prompt_length in slots.items():
        planner.start(slot, prompt_length=prompt_length)
    return planner


def alone(runner: ModelRunner, index: int, prompt_length: int | None = None) -> Array:
    """The last logits of a sequence that is served alone, its output token by token."""
    tokens, prompt_length = SEQUENCES[index], PROMPT_LENGTHS[index] if prompt_length is None else prompt_length
    steps = [[Row(0, tokens[:prompt_length])], *([Row(0, [token])] for token in tokens[prompt_length:])]
    return logits(runner, planner_of({0: prompt_length}), steps)[0][-1]


@pytest.fixture(scope="module")
def expected(runner: ModelRunner) -> list[Array]:
    return [alone(runner, index) for index in range(len(SEQUENCES))]


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 1 << 32), num_threads=st.sampled_from([1, 2, 3]))
def test_logits_are_those_of_the_sequence_alone(
    runner: ModelRunner, expected: list[Array], seed: int, num_threads: int
) -> None:
    """In chunks of prompts, of prompts and outputs, and of outputs, as a preempted sequence is computed anew."""
    pyllm_kernels.set_num_threads(num_threads)
    generator, left = random.Random(seed), {slot: list(tokens) for slot, tokens in enumerate(SEQUENCES)}
    steps = []
    while left:
        rows = []
        for slot in list(left):
            size = generator.choice([0, 1, 1, 3, 6, 17, 104])
            if size:
                rows.append(Row(slot, left[slot][:size]))
                left[slot] = left[slot][size:]
                if not left[slot]:
                    del left[slot]
        if rows:
            steps.append(rows)
    found = logits(runner, planner_of(dict(enumerate(PROMPT_LENGTHS))), steps)
    assert all(np.array_equal(found[slot][-1], expected[slot]) for slot in found)


def test_outputs_are_sparse_and_prompts_are_not(runner: ModelRunner, model: str) -> None:
    own = CASES["quest in int8"] if runner._engine.model.quantization == "int8" else {}
    dense = loaded_runner(
        model,
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
        **(own | {"sparse_attention": "", "dtype": runner._engine.model.dtype}),
    )
    whole = len(SEQUENCES[0])
    assert np.array_equal(alone(runner, 0, whole), alone(dense, 0, whole))
    assert not np.array_equal(alone(runner, 0), alone(dense, 0))
    assert np.array_equal(alone(dense, 0), alone(dense, 0, whole))


@pytest.mark.parametrize("kind", ["quest", "mean"])
def test_a_budget_for_all_blocks_gives_the_bits_of_dense_attention(model: str, kind: str) -> None:
    dense = loaded_runner(model, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE)
    enough = sparse_runner(model, sparse_attention=kind, sparse_attention_top_k=24)
    less = sparse_runner(model, sparse_attention=kind, sparse_attention_top_k=23)
    assert len(SEQUENCES[3]) == 26 * BLOCK_SIZE
    assert np.array_equal(alone(enough, 3), alone(dense, 3))
    assert not np.array_equal(alone(less, 3), alone(dense, 3))


def test_a_block_that_is_used_again_has_no_old_summaries(runner: ModelRunner, expected: list[Array]) -> None:
    """By another sequence, after a copy, and after a swap."""
    for first in (3, 0, 2):
        planner = planner_of({0: PROMPT_LENGTHS[first]})
        tokens = SEQUENCES[first]
        logits(runner, planner, [[Row(0, tokens[:60])], *([Row(0, [token])] for token in tokens[60:])])
        planner.start(0, prompt_length=PROMPT_LENGTHS[1])  # Its blocks go to the next one.
        steps = [[Row(0, SEQUENCES[1][:8])], *([Row(0, [token])] for token in SEQUENCES[1][8:])]
        assert np.array_equal(logits(runner, planner, steps)[0][-1], expected[1])


def test_copies_and_swaps_make_summaries_anew(model: str) -> None:
    runner = loaded_runner(
        model, num_blocks=NUM_BLOCKS, num_host_blocks=64, block_size=BLOCK_SIZE, sparse_attention="quest", **SPARSE
    )
    want = alone(runner, 0)
    tokens, prompt_length = SEQUENCES[0], PROMPT_LENGTHS[0]
    planner = planner_of({0: prompt_length}, num_host_blocks=64)
    half = [[Row(0, tokens[:prompt_length])], *([Row(0, [token])] for token in tokens[prompt_length:60])]
    logits(runner, planner, half)
    on_host, length = planner.swap_out(0)
    # Another sequence takes all blocks that are free, and has summaries of them.
    planner.start(1, prompt_length=1)
    noise = random.Random(0).choices(range(256), k=400)
    logits(runner, planner, [[Row(1, noise)], [Row(1, [7])]])
    planner.start(1, prompt_length=1)
    planner.start(2, prompt_length=prompt_length)
    planner.swap_in(2, on_host, length)
    assert np.array_equal(logits(runner, planner, [[Row(2, [token])] for token in tokens[60:]])[2][-1], want)

    planner = planner_of({0: prompt_length})
    logits(runner, planner, half)
    planner.fork(0, 3)  # The last block is copied, and the prompt's length goes along.
    rest = [[Row(3, [token]), Row(0, [9])] for token in tokens[60:]]
    assert np.array_equal(logits(runner, planner, rest)[3][-1], want)


def test_layers_with_a_window_stay_dense(tmp_path: Path) -> None:
    folder = write_tiny_family(tmp_path / "gemma", "gemma3")
    runner = loaded_runner(folder, block_size=BLOCK_SIZE, sparse_attention="quest")
    assert isinstance(runner._selector, TopKSelector)
    windows = [layer.attention.window for layer in runner._spec.layers]
    assert sorted(runner._selector._keys) == [layer for layer in range(2, 6) if windows[layer] is None] == [5]


def test_a_selector_is_asked_once_a_graph_and_dense_layers_call_nothing_more(model: str) -> None:
    """Where it is off, a layer calls three functions; where it is on, two more; in a graph none."""
    dense = loaded_runner(model, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, enforce_eager=True)
    eager = sparse_runner(model, sparse_attention="quest", enforce_eager=True)
    captured = sparse_runner(model, sparse_attention="quest")
    assert calls_of_attention(dense) == ["rotation", "rope_and_kv_write", "paged_attention"] * 3
    asked = ["rotation", "rope_and_kv_write", "attention_begin", "paged_attention", "attention_finished"]
    assert calls_of_attention(eager) == asked * 3
    assert calls_of_attention(captured) == []


def test_a_dense_step_calls_nothing_of_sparse_attention(model: str) -> None:
    dense = loaded_runner(model, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE)
    assert calls_in_a_decode(dense, is_of_sparse_attention) == []


def test_a_captured_step_calls_no_more_for_more_layers(model: str, tmp_path: Path) -> None:
    deeper = write_tiny_model(tmp_path / "deeper", layers=6)
    calls, more = (
        calls_in_a_decode(sparse_runner(folder, sparse_attention="quest"), is_of_sparse_attention)
        for folder in (model, deeper)
    )
    assert 0 < len(calls) <= 5
    assert len(more) == len(calls)


def is_of_sparse_attention(frame: FrameType) -> bool:
    path = frame.f_code.co_filename
    parts = ("pyllm/workers/sparse_attention/", "pyllm/workers/step/step_rows.py")
    return "/tests/" not in path and any(part in path for part in parts)


def calls_of_attention(runner: ModelRunner) -> list[str]:
    """The functions that the attention of each layer calls in one decode."""

    def is_called_by_it(frame: FrameType) -> bool:
        return frame.f_back is not None and frame.f_back.f_code is PagedAttention.__call__.__code__

    return [name for name in calls_in_a_decode(runner, is_called_by_it) if name != "__getitem__"]  # of `Kernels`


def calls_in_a_decode(runner: ModelRunner, is_wanted: Callable[[FrameType], bool]) -> list[str]:
    planner = planner_of({0: 60})
    run(runner, planner.step(Row(0, SEQUENCES[0][:60])))
    step, called = planner.step(Row(0, [-1])), []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and is_wanted(frame):
            called.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        run(runner, step)
    finally:
        sys.setprofile(None)
    return called
