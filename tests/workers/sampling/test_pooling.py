"""Embeddings are transformers' last hidden state, and bitwise the same however their prompt was cut and beside what."""

import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyllm_kernels
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaModel

from pyllm.wire.messages import POOLING, Embeddings, Step
from pyllm.workers.devices.torch_device import TorchDevice
from pyllm.workers.model_runner import ModelRunner
from tests.plans import Planner, Row
from tests.workers.engine import loaded_runner
from tests.workers.test_cuda_graphs import Recorder

PROMPTS = [[(7 * position * position + number) % 256 for position in range(3 + 17 * number)] for number in range(5)]
Vectors = list[npt.NDArray[np.float32]]


@pytest.fixture(scope="module", params=["float32", "bfloat16", "int8"])
def runner(request: pytest.FixtureRequest, model: str) -> Iterator[ModelRunner]:
    options: dict[str, dict[str, Any]] = {
        "float32": {},
        "bfloat16": {"dtype": "bfloat16"},
        "int8": {"quantization": "int8", "dtype": "bfloat16"},
    }
    yield loaded_runner(model, **options[request.param])
    pyllm_kernels.set_num_threads(1)


def rows(embeddings: Embeddings | None, num_rows: int) -> Vectors:
    """A step's vectors, row by row."""
    if embeddings is None:
        return [np.zeros(0, np.float32)] * num_rows
    starts, values = np.frombuffer(embeddings.starts, np.int32), np.frombuffer(embeddings.values, np.float32)
    assert (len(starts), starts[0], starts[-1]) == (num_rows + 1, 0, len(values))
    return [values[start:end] for start, end in pairwise(starts.tolist())]


def embed(runner: ModelRunner, step: tuple[Step, bytes], num_rows: int) -> Vectors:
    return rows(runner.run(*step).embeddings, num_rows)


def alone(runner: ModelRunner, kind: str = "last") -> Vectors:
    found = []
    for prompt in PROMPTS:
        planner = Planner()
        planner.start(0, POOLING[kind])
        found += embed(runner, planner.step(Row(0, prompt)), 1)
    return found


@pytest.mark.parametrize("kind", list(POOLING))
def test_embeddings_are_the_oracles(model: str, kind: str) -> None:
    oracle = LlamaModel.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
    for prompt, vector in zip(PROMPTS, alone(loaded_runner(model), kind), strict=True):
        with torch.inference_mode():
            states = oracle(torch.tensor([prompt])).last_hidden_state[0].double()
        expected = {"last": states[-1], "mean": states.mean(dim=0), "cls": states[0]}[kind]
        expected = (expected / expected.norm()).numpy()
        assert float(vector.astype(np.float64) @ expected) > 1 - 1e-6
        assert np.abs(vector - expected).max() < 1e-5
        assert np.linalg.norm(vector.astype(np.float64)) == pytest.approx(1.0, abs=1e-6)


def test_only_the_row_that_ends_a_prompt_has_one(model: str) -> None:
    runner, planner = loaded_runner(model), Planner()
    planner.start(2, POOLING["last"])
    planner.start(5)
    chunk = embed(runner, planner.step(Row(2, PROMPTS[1][:9], ()), Row(5, [4])), 2)
    assert [len(each) for each in chunk] == [0, 0]
    told, nothing = embed(runner, planner.step(Row(2, PROMPTS[1][9:]), Row(5, [-1])), 2)
    assert (len(told), len(nothing)) == (48, 0)
    planner.start(2)
    assert [len(each) for each in embed(runner, planner.step(Row(5, [-1]), Row(2, [8, 8])), 2)] == [0, 0]


@pytest.mark.parametrize("kind", ["mean", "cls"])
def test_a_slot_whose_owner_ended_within_its_prompt_begins_at_nothing(model: str, kind: str) -> None:
    runner, planner = loaded_runner(model), Planner()
    planner.start(0, POOLING[kind])
    assert runner.run(*planner.step(Row(0, PROMPTS[2], ()))).embeddings is None
    again = Planner()
    again.start(0, POOLING[kind])
    assert runner.run(*again.step(Row(0, PROMPTS[1][:9], ()))).embeddings is None
    assert np.array_equal(embed(runner, again.step(Row(0, PROMPTS[1][9:])), 1)[0], alone(runner, kind)[1])


def test_the_first_tokens_state_is_kept_while_other_prompts_come_and_go(model: str) -> None:
    runner, planner = loaded_runner(model), Planner()
    expected = alone(runner, "cls")
    for slot in (1, 4):
        planner.start(slot, POOLING["cls"])
    assert runner.run(*planner.step(Row(4, PROMPTS[4][:1], ()), Row(1, PROMPTS[1][:9], ()))).embeddings is None
    planner.start(2, POOLING["cls"])
    mixed = planner.step(Row(1, PROMPTS[1][9:]), Row(4, PROMPTS[4][1:40], ()), Row(2, PROMPTS[2]))
    first, nothing, second = embed(runner, mixed, 3)
    assert np.array_equal(first, expected[1])
    assert np.array_equal(second, expected[2])
    assert len(nothing) == 0
    assert np.array_equal(embed(runner, planner.step(Row(4, PROMPTS[4][40:])), 1)[0], expected[4])


def test_a_prompt_of_one_token_in_a_captured_decode(model: str) -> None:
    expected = embed_one_token(loaded_runner(model, kernel_backend="reference"))
    device = TorchDevice(torch.device("cpu"))
    runner, recorder = loaded_runner(model, device=device, kernel_backend="reference"), Recorder()
    runner.capture(recorder)
    assert np.allclose(embed_one_token(runner), expected, atol=1e-6)
    assert recorder.replays


def embed_one_token(runner: ModelRunner) -> npt.NDArray[np.float32]:
    planner = Planner()
    planner.start(0)
    planner.start(1, POOLING["last"])
    return embed(runner, planner.step(Row(0, [3]), Row(1, [9])), 2)[1]


@settings(max_examples=8)
@given(
    seed=st.integers(0, 1 << 32),
    num_threads=st.sampled_from([1, 2, 3]),
    kinds=st.lists(st.sampled_from(list(POOLING)), min_size=len(PROMPTS), max_size=len(PROMPTS)),
)
def test_an_embedding_depends_on_its_prompt_alone(
    runner: ModelRunner, seed: int, num_threads: int, kinds: list[str]
) -> None:
    pyllm_kernels.set_num_threads(num_threads)
    by_kind = {kind: alone(runner, kind) for kind in set(kinds)}
    expected = [by_kind[kind][index] for index, kind in enumerate(kinds)]
    generator = random.Random(seed)
    planner = Planner()
    left = {slot: list(prompt) for slot, prompt in enumerate(PROMPTS)}
    for slot, kind in enumerate(kinds):
        planner.start(slot, POOLING[kind])
    planner.start(7)
    found: dict[int, npt.NDArray[np.float32]] = {}
    others = [5, 6]
    while left:
        plan = [Row(7, others)]  # which generates beside them
        for slot in list(left):
            size = generator.choice([0, 1, 2, 17, 70])
            if size:
                chunk, left[slot] = left[slot][:size], left[slot][size:]
                plan.append(Row(slot, chunk, () if left[slot] else (0.5,)))
                if not left[slot]:
                    del left[slot]
        generator.shuffle(plan)
        for row, vector in zip(plan, embed(runner, planner.step(*plan), len(plan)), strict=True):
            if len(vector):
                found[row.slot] = vector
        others = [-1]
    assert all(np.array_equal(found[slot], vector) for slot, vector in enumerate(expected))
