"""Captured steps of any kind give what eager ones give, over a graph that refuses what CUDA's refuses."""

import itertools
import logging
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from pyllm_kernels import AttentionMetadata, Kernels, batch_invariant, select
from torch import Tensor

from pyllm.wire.messages import Step
from pyllm.workers.cuda_graphs import (
    MAX_CAPTURE_BYTES,
    MAX_CAPTURE_SECONDS,
    MIXED_TOKENS,
    CaptureBudget,
)
from pyllm.workers.devices.torch_device import TorchDevice
from pyllm.workers.forward_pass import ForwardPass, Limits
from pyllm.workers.kv.kv_cache import CachedLayer
from pyllm.workers.layers.rank_group import RankGroup
from pyllm.workers.step.batch import PlanBuffer
from pyllm.workers.step.slots import Slots
from tests.families.tiny_families import write_tiny_family
from tests.plans import Planner, Row
from tests.tiers import full
from tests.tiny_model import write_tiny_model
from tests.workers.compile_steps import make_forward
from tests.workers.fake_capture import FakeCapture

CPU = TorchDevice(torch.device("cpu"))


@dataclass
class Engine:
    """A forward pass and what a runner does around it; greedy."""

    forward: ForwardPass
    slots: Slots
    plans: PlanBuffer
    sampled: list[Tensor] = field(default_factory=list)

    def run(self, step: Step, frame: bytes) -> Tensor:
        """Hidden states."""
        batch = self.plans.load(step.counts, frame)
        self.slots.apply(batch)
        hidden = self.forward.hidden(batch).clone()
        logits = self.forward.logits(hidden, batch.device.logits_rows)
        assert logits is not None
        self.sampled.append(logits.argmax(-1).int())
        self.slots.remember(batch, self.sampled[-1])
        return hidden


@dataclass
class Pair:
    """The same model twice over caches of their own: eager, and by graphs."""

    eager: Engine
    captured: Engine
    capture: FakeCapture
    planner: Planner
    tolerance: float

    def run(self, *rows: Row) -> int | None:
        """Run a step on both; how many tokens the replayed graph has, None if none was."""
        step, num_replays = self.planner.step(*rows), len(self.capture.replays)
        expected, found = self.eager.run(*step), self.captured.run(*step)
        torch.testing.assert_close(found, expected, atol=self.tolerance, rtol=self.tolerance)
        assert torch.equal(self.eager.sampled[-1], self.captured.sampled[-1])
        return self.capture.replays[-1] if len(self.capture.replays) > num_replays else None


def make_pair(
    folder: str,
    kernels: Kernels,
    limits: Limits,
    *,
    is_invariant: bool = False,
    capture: FakeCapture | None = None,
    clock: Callable[[], float] = lambda: 0.0,
) -> Pair:
    capture = FakeCapture() if capture is None else capture
    engines = []
    for ops in (kernels, capture.launching(kernels)):
        forward, kv_cache, slots = make_forward(folder, ops, "float32", limits, is_invariant)
        num_groups = len(slots.tables_of_groups())
        engines.append(Engine(forward, slots, PlanBuffer(CPU, num_groups=num_groups)))
    engines[1].forward.capture_steps(capture, CaptureBudget(capture, clock, RankGroup(), CPU))
    planner = Planner(kv_cache.num_blocks, num_groups=num_groups, max_num_seqs=limits.max_num_seqs)
    return Pair(*engines, capture, planner, tolerance=0.0 if is_invariant else 1e-4)


def any_rows(generator: random.Random, planner: Planner, limits: Limits, waiting: set[int]) -> Iterator[Row]:
    """Rows of a step: chunks, last chunks, decodes with drafts and without, of slots that begin anew now and then.

    `waiting` are the slots whose last token the worker knows.
    """
    num_tokens = generator.choice([8, 40, 100, limits.max_num_batched_tokens])
    for slot in generator.sample(range(limits.max_num_seqs), generator.choice([1, 3, limits.max_num_seqs])):
        if slot not in planner.lengths or generator.random() < 0.1:
            planner.start(slot)
            waiting.discard(slot)
        size = generator.choice([1, 1, 1, 2, 15]) if slot in waiting else generator.randrange(1, 60)
        size = min(size, num_tokens, limits.max_model_len - planner.lengths[slot])
        if size > 0:
            num_tokens -= size
            tokens = [generator.randrange(250) for _ in range(size)]
            if slot in waiting:
                tokens[0] = -1
            waiting.discard(slot)
            is_sampled = generator.random() < 0.8
            if is_sampled:
                waiting.add(slot)
            yield Row(slot, tokens, (0.5,) if is_sampled else ())


# Layers with windows and without, which are two groups; and experts, sinks.
@pytest.mark.parametrize("family", ["olmo3", "gpt-oss"])
@torch.inference_mode()
def test_any_step_gives_what_it_gives_eagerly(tmp_path: Path, family: str) -> None:
    limits = Limits(max_num_seqs=20, max_num_batched_tokens=200, max_model_len=128)
    both = make_pair(write_tiny_family(tmp_path / "model", family), select("reference", CPU), limits)
    assert len(both.captured.slots.tables_of_groups()) > 1
    generator, waiting = random.Random(5), set[int]()
    sizes = set()
    for _ in range(40):
        sizes.add(both.run(*any_rows(generator, both.planner, limits, waiting)))
    assert None not in sizes
    assert sizes >= {1, 16, 32, 64, 128}


# Convolutions alone, and with the delta rule; Mamba-2 beside attention.
@pytest.mark.parametrize("family", ["lfm2", full("qwen3-next-dense"), full("granite-4-mamba")])
@torch.inference_mode()
def test_graphs_read_and_write_the_states_of_their_rows(tmp_path: Path, family: str) -> None:
    limits = Limits(max_num_seqs=6, max_num_batched_tokens=100, max_model_len=128)
    both = make_pair(write_tiny_family(tmp_path / "model", family), select("reference", CPU), limits)
    generator, waiting = random.Random(6), set[int]()
    sizes = {both.run(*any_rows(generator, both.planner, limits, waiting)) for _ in range(20)}
    assert None not in sizes
    assert len(sizes) > 2
    states = [engine.forward._state_cache for engine in (both.eager, both.captured)]
    for eager, captured in zip(*(cache.layers.values() for cache in states if cache is not None), strict=True):
        for ours, theirs in zip(eager, captured, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
            assert ours.count_nonzero()


@torch.inference_mode()
def test_a_step_takes_the_smallest_graph_with_room(tmp_path: Path) -> None:
    limits = Limits(max_num_seqs=70, max_num_batched_tokens=600, max_model_len=600)
    both = make_pair(
        write_tiny_model(tmp_path, layers=1, max_position_embeddings=600), select("reference", CPU), limits
    )
    for size in MIXED_TOKENS:
        taken = []
        for num_tokens in (size - 1, size, size + 1):
            both.planner.start(0)
            taken.append(both.run(Row(0, [7] * num_tokens)))
        larger = min((other for other in MIXED_TOKENS if other > size), default=None)
        assert taken == [size, size, larger]
    for slot in range(70):
        both.planner.start(slot)
    # As many rows as tokens but one; then more rows than the smaller number of them.
    for num_rows, expected in ((14, 16), (15, 16), (16, 32), (63, 64), (64, 128), (65, 128)):
        both.planner.start(0)
        assert both.run(Row(0, [3, 4]), *(Row(slot, [5]) for slot in range(1, num_rows))) == expected
    assert both.run(*(Row(slot, [-1]) for slot in range(65))) == 70
    assert both.run(*(Row(slot, [-1]) for slot in (69, 3))) == 2


@torch.inference_mode()
def test_padding_changes_no_bit_where_rows_are_invariant(tmp_path: Path) -> None:
    """Triton's kernels: the task map has room for any batch of a graph's size, and no tile depends on it."""
    limits = Limits(max_num_seqs=4, max_num_batched_tokens=32, max_model_len=64)
    model = write_tiny_model(tmp_path, layers=1, heads=2, kv_heads=1, hidden_size=32, intermediate_size=32)
    both = make_pair(model, batch_invariant(select("triton", CPU)), limits, is_invariant=True)
    for slot in range(4):
        both.planner.start(slot)
    taken = [both.run(Row(0, [1, 2, 3]), Row(1, [9] * 8)), both.run(Row(0, [-1]), Row(1, [-1, 4]), Row(2, [7] * 20))]
    taken += [both.run(*(Row(slot, [-1]) for slot in range(3)))]
    assert taken == [16, 32, 4]


@torch.inference_mode()
def test_splits_of_decodes_fit_beside_tiles(tmp_path: Path) -> None:
    limits = Limits(max_num_seqs=2, max_num_batched_tokens=16, max_model_len=160)
    model = write_tiny_model(tmp_path, layers=1, heads=2, kv_heads=1, hidden_size=32, intermediate_size=32)
    both = make_pair(model, select("triton", CPU), limits)
    both.planner.start(0)
    both.planner.start(1)
    assert both.run(Row(0, [5] * 135)) is None
    assert both.run(Row(0, [-1]), Row(1, [9] * 8)) == 16
    assert both.run(Row(1, [-1]), Row(0, [-1])) == 2


@torch.inference_mode()
def test_time_and_memory_bound_the_graphs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    limits = Limits(max_num_seqs=4, max_num_batched_tokens=600, max_model_len=600)
    model = write_tiny_model(tmp_path, layers=1, max_position_embeddings=600)
    kernels, seconds = select("reference", CPU), itertools.count(0.0, MAX_CAPTURE_SECONDS / 6)
    late = make_pair(model, kernels, limits, clock=lambda: next(seconds))
    assert "captured 3 of 3 decode steps, and 2 of 10 mixed steps; all graphs took 23.3 s and 0 MiB" in caplog.text
    # It is read at first, before each graph, and for the log.
    used = iter([*[0] * 5, 1 << 20, MAX_CAPTURE_BYTES, MAX_CAPTURE_BYTES + 1, 769 << 20])
    full = make_pair(model, kernels, limits, capture=FakeCapture(lambda: (2 << 30) - next(used)))
    assert "captured 3 of 3 decode steps, and 3 of 10 mixed steps; all graphs took 0.0 s and 769 MiB" in caplog.text
    for both, smallest in ((late, 448), (full, 384)):
        for slot in range(4):
            both.planner.start(slot)
        # A step that is much smaller than any graph left is faster without.
        assert both.run(Row(0, [3] * 100)) is None
        assert both.run(Row(0, [-1, 3]), Row(1, [4] * 298)) == smallest
        assert both.run(Row(1, [-1]), Row(0, [-1])) == 2


def test_hooks_are_passed_by_all_the_same(tmp_path: Path) -> None:
    limits = Limits(max_num_seqs=2, max_num_batched_tokens=16, max_model_len=64)
    both = make_pair(write_tiny_model(tmp_path), select("reference", CPU), limits)
    seen: list[int] = []

    class Hook:
        def before_attention(self, layer: int) -> None:
            seen.append(layer)

        def after_attention(
            self, layer: int, output: Tensor, cached: CachedLayer, metadata: AttentionMetadata
        ) -> Tensor:
            return output

    both.captured.forward.add_hook(Hook())
    both.planner.start(0)
    with torch.inference_mode():
        assert both.run(Row(0, [1, 2])) is None
        assert both.run(Row(0, [-1])) is None
    assert seen == [0, 1, 0, 1]
