"""Swaps beside the steps: whatever order streams and events allow, the bytes are those of one move after another."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyllm_kernels import Kernels, select
from pyllm_kernels.ops.blocks import swap_blocks
from torch import Tensor

from pyllm.workers.kv.swap_stream import SwapStream, staged_blocks, staging_bytes
from pyllm.workers.step.batch import IntArray
from tests.tiers import cases
from tests.workers.fake_capture import FakeCapture
from tests.workers.kv.fake_streams import FakeStreams, NotQueuedError, Work

REFERENCE = select("reference", "cpu")
NUM_BLOCKS, NUM_HOST_BLOCKS = 5, 6
BLOCKS, HOST_BLOCKS = st.integers(0, NUM_BLOCKS - 1), st.integers(0, NUM_HOST_BLOCKS - 1)
Move = tuple[int, int]  # device block, host block


@dataclass
class Step:
    """What goes out, what comes in, and which blocks the forward pass overwrites, having read all."""

    outs: list[Move] = field(default_factory=list)
    ins: list[Move] = field(default_factory=list)
    written: list[int] = field(default_factory=list)

    def swaps(self) -> IntArray:
        """As a plan has them."""
        swaps = [(0, *move) for move in self.outs] + [(1, *move) for move in self.ins]
        return np.array(swaps, np.int32).reshape(-1, 3)


STEPS = st.lists(
    st.builds(
        Step,
        outs=st.lists(st.tuples(BLOCKS, HOST_BLOCKS), max_size=5, unique_by=lambda move: move[1]),
        ins=st.lists(st.tuples(BLOCKS, HOST_BLOCKS), max_size=5, unique_by=lambda move: move[0]),
        written=st.lists(BLOCKS, max_size=NUM_BLOCKS),
    ),
    min_size=1,
    max_size=3,
)
# With room for one block in each buffer both take a round for each, and a later step finds both in use.
ROUNDS = [
    Step([(0, 3), (1, 1)], [(2, 4), (3, 5)], [0, 1, 2]),
    Step([(2, 0), (0, 2)], [(1, 3), (0, 1)], [2, 4]),
    Step([], [(4, 0), (3, 2)], [0]),
]


def memories() -> tuple[Tensor, Tensor]:
    """A cache and a host pool in which every number is another."""
    cache = torch.arange(2 * 2 * NUM_BLOCKS * 3, dtype=torch.float32).view(2, 2, NUM_BLOCKS, 3, 1)
    return cache, -1 - torch.arange(NUM_HOST_BLOCKS * 2 * 2 * 3, dtype=torch.float32).view(NUM_HOST_BLOCKS, 2, 2, 3, 1)


def forward(cache: Tensor, written: list[int], number: int, seen: list[Tensor]) -> None:
    """Read every block, then write some."""
    seen.append(cache.clone())
    for block in written:
        cache[:, :, block] = 1000.0 * (number + 1) + block


def one_after_another(steps: list[Step]) -> list[Tensor]:
    """What every forward pass has read, and what is left in the cache and on the host."""
    (cache, host_blocks), seen = memories(), list[Tensor]()
    for number, step in enumerate(steps):
        REFERENCE[swap_blocks](cache, host_blocks, torch.from_numpy(step.swaps()))
        forward(cache, step.written, number, seen)
    return [*seen, cache, host_blocks]


def in_flight(
    streams: FakeStreams, steps: list[Step], choose: Callable[[list[Work]], Work], num_staged: int = 1
) -> list[Tensor]:
    """The same where nothing has run before the last step is begun."""
    (cache, host_blocks), seen = memories(), list[Tensor]()
    stream = SwapStream(cache, host_blocks, streams.launching(REFERENCE), num_staged, streams)
    for number, step in enumerate(steps):
        swaps = step.swaps()
        on_device = torch.from_numpy(swaps)
        with torch.inference_mode(), streams.queueing():
            stream.swap(swaps, on_device)
        streams.launch("forward", lambda number=number, step=step: forward(cache, step.written, number, seen))
    streams.finish(choose)
    return [*seen, cache, host_blocks]


def are_equal(some: list[Tensor], others: list[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


@settings(max_examples=cases(60))
@given(steps=STEPS, order=st.lists(st.integers(0, 5), min_size=1, max_size=30), num_staged=st.integers(1, 3))
def test_any_order_that_the_events_allow_gives_the_same_bytes(
    steps: list[Step], order: list[int], num_staged: int
) -> None:
    numbers = iter(order * 100)
    outcome = in_flight(FakeStreams(), steps, lambda ready: ready[next(numbers) % len(ready)], num_staged)
    assert are_equal(outcome, one_after_another(steps))


@pytest.mark.parametrize("ignored", [None, 0, 1, 2, 3])
def test_every_event_is_needed(ignored: int | None) -> None:
    expected, right = one_after_another(ROUNDS), []
    for seed in range(50):
        streams = FakeStreams(ignored)
        right.append(are_equal(in_flight(streams, ROUNDS, random.Random(seed).choice), expected))
        assert len(streams.events) == 4
    assert all(right) == (ignored is None)


def oldest(ready: list[Work]) -> Work:
    return ready[0]


def steps_first(ready: list[Work]) -> Work:
    """PCIe is slow."""
    return min(ready, key=lambda work: work.name == "copy_")


def copies_first(ready: list[Work]) -> Work:
    """The steps are slow."""
    return max(ready, key=lambda work: work.name == "copy_")


def test_what_goes_out_is_copied_beside_the_step() -> None:
    streams = FakeStreams()
    in_flight(streams, [Step([(0, 0)], [(1, 1)], [0])], steps_first)
    assert streams.log == ["gather_blocks", "copy_", "scatter_blocks", "forward", "copy_"]


def test_what_comes_in_is_copied_beside_the_step_before() -> None:
    streams = FakeStreams()
    in_flight(streams, [Step([(0, 0)], [], [0]), Step([], [(1, 1)], [])], copies_first)
    assert streams.log == ["gather_blocks", "copy_", "copy_", "forward", "scatter_blocks", "forward"]


def test_what_comes_in_waits_for_what_goes_out_to_the_same_host_block() -> None:
    streams = FakeStreams()
    in_flight(streams, [Step([(0, 1)], [(2, 1)], [0])], steps_first)
    assert streams.log == ["gather_blocks", "copy_", "copy_", "scatter_blocks", "forward"]


def test_host_blocks_that_follow_one_another_are_one_copy() -> None:
    streams = FakeStreams()
    moves = [(4, 1), (0, 2), (2, 3), (1, 5), (3, 0)]
    in_flight(streams, [Step(moves)], oldest, num_staged=5)
    assert streams.log == ["gather_blocks", "copy_", "copy_", "copy_", "forward"]


@torch.inference_mode()
def test_nothing_waits_for_the_device() -> None:
    cache, host_blocks = memories()
    capture, streams = FakeCapture(warm_up=False), FakeStreams()
    kernels: Kernels = capture.launching(REFERENCE)
    stream = SwapStream(cache, host_blocks, kernels, 1, streams)
    on_device = [torch.from_numpy(step.swaps()) for step in ROUNDS]

    def compute() -> Tensor:
        for step, swaps in zip(ROUNDS, on_device, strict=True):
            stream.swap(step.swaps(), swaps)
        return cache * 1

    output, replay = capture(compute)
    cache.copy_(memories()[0])
    host_blocks.copy_(memories()[1])
    replay()
    steps = [Step(step.outs, step.ins) for step in ROUNDS]
    assert are_equal([output, cache, host_blocks], [cache, *one_after_another(steps)[-2:]])


def test_the_fake_refuses_what_is_no_plain_copy() -> None:
    numbers = torch.zeros(3)
    streams = FakeStreams()
    for op in (lambda: torch.empty(2), lambda: numbers + 1, numbers.sum, lambda: numbers[1:].copy_(numbers[:2])):
        with torch.inference_mode(), streams.queueing(), pytest.raises(NotQueuedError):
            op()


def test_buffers_have_room_for_64_mib_but_for_no_more_than_the_host_has() -> None:
    assert [staged_blocks(1000, size) for size in (1 << 10, 1 << 20, 100 << 20)] == [1000, 64, 1]
    assert [staged_blocks(number, 2 << 20) for number in (0, 3)] == [0, 3]
    assert staging_bytes(1000, 2 << 20) == 128 << 20
    assert staging_bytes(0, 2 << 20) == 0
