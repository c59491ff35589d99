"""Host memory that outlives its worker: what counts after any death, any damage, and under any other model."""

import os
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllm.wire.plan_layout import NO_GROUP
from pyllm.workers.kv import host_tier
from pyllm.workers.kv.host_tier import HostTier

ID = bytes(range(32))
SHAPE = (2, 2, 4, 2, 8)
NUM_BLOCKS = 5
INDEX_START, INDEX_ENTRY = 64, 64


@pytest.fixture(scope="module")
def descriptor() -> Iterator[int]:
    memory = os.memfd_create("blocks")
    yield memory
    os.close(memory)


def opened(descriptor: int, identity: bytes = ID, num_blocks: int = NUM_BLOCKS) -> HostTier:
    """As a new worker opens it, and waits for its blocks."""
    tier = HostTier(descriptor, identity, num_blocks, SHAPE, "float32")
    tier.inventory()  # A thread that still read memory that the test then cuts would end the process by SIGBUS.
    return tier


def emptied(descriptor: int) -> HostTier:
    os.ftruncate(descriptor, 0)
    return opened(descriptor)


def name(number: int, group: int = 0) -> bytes:
    return bytes([number]) * 32 + group.to_bytes(4, "little") + bytes(4)


def write(tier: HostTier, blocks: dict[int, int], group: int = 0) -> None:
    """Fill each block with a number, which is its name, too."""
    each = np.array(list(blocks), np.int32)
    writes = tier.begin(each)
    for block, number in blocks.items():
        tier.blocks[block] = number
    names = b"".join(name(number, group) for number in blocks.values())
    tier.finish(each, np.frombuffer(names, np.uint8), writes)


def kept(tier: HostTier) -> dict[int, int]:
    """What counts: the number that each block is named by. Its bytes are that number's."""
    inventory, found = tier.inventory(), {}
    for at in range(0, len(inventory), 44):
        block, number = int.from_bytes(inventory[at : at + 4], "little"), inventory[at + 4]
        assert inventory[at + 4 : at + 44] == name(number)
        assert bool((tier.blocks[block] == number).all()), "a block is what its name says"
        found[block] = number
    return found


def test_what_was_whole_counts_in_the_next_worker(descriptor: int) -> None:
    tier = emptied(descriptor)
    assert kept(tier) == {}
    write(tier, {4: 7, 1: 9})
    write(tier, {2: 3}, group=NO_GROUP)
    tier.begin(np.array([0], np.int32))
    assert kept(opened(descriptor)) == {1: 9, 4: 7}
    write(tier, {1: 6})
    tier.begin(np.array([4], np.int32))
    assert kept(opened(descriptor)) == {1: 6}


def test_what_is_forgotten_does_not_count(descriptor: int) -> None:
    tier = emptied(descriptor)
    write(tier, {0: 1, 1: 2})
    late = tier.begin(np.array([2], np.int32))
    tier.forget()
    tier.finish(np.array([2], np.int32), np.frombuffer(name(5), np.uint8), late)
    assert kept(opened(descriptor)) == {}
    write(tier, {0: 3})
    again = opened(descriptor)
    assert kept(again) == {0: 3}
    again.forget()
    assert kept(again) == {}, "also where it was verified before"


@pytest.mark.parametrize("other", [{"identity": bytes(32)}, {"num_blocks": 4}, {"num_blocks": 6}])
def test_memory_of_another_model_or_size_is_not_read_and_begins_anew(descriptor: int, other: dict[str, Any]) -> None:
    write(emptied(descriptor), {0: 1})
    tier = opened(descriptor, **other)
    assert (kept(tier), tier.swap_seconds, bool(tier.blocks.any())) == ({}, None, False)


def test_the_seconds_of_a_swap_are_kept_with_the_blocks(descriptor: int) -> None:
    tier = emptied(descriptor)
    assert tier.swap_seconds is None
    tier.swap_seconds = 0.25
    assert (opened(descriptor).swap_seconds, opened(descriptor, bytes(32)).swap_seconds) == (0.25, None)


class KilledError(BaseException):
    """Stands for SIGKILL: nothing runs after it."""


def killed_at(line: int) -> Any:
    """A trace function that ends whatever runs at the n-th line of the tier's module."""
    left = line

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename != host_tier.__file__:
            return None
        if event == "line":
            left -= 1
            if left < 0:
                raise KilledError
        return trace

    return trace


def test_a_worker_that_is_killed_at_any_line_leaves_whole_blocks_or_none(descriptor: int) -> None:
    survivors = []
    for line in range(1000):
        tier = emptied(descriptor)
        write(tier, {0: 1, 1: 2})
        before = sys.gettrace()
        sys.settrace(killed_at(line))
        try:
            write(tier, {1: 3, 2: 4})
        except KilledError:
            sys.settrace(before)
            survivors.append(kept(opened(descriptor)))
            continue
        finally:
            sys.settrace(before)
        break
    assert all(after[0] == 1 for after in survivors)
    assert all(after.get(1) in {None, 2, 3} and after.get(2) in {None, 4} for after in survivors)
    for after in ({0: 1, 1: 2}, {0: 1}, {0: 1, 1: 3}):
        assert after in survivors, "it was killed before, within and after a write"
    assert kept(opened(descriptor)) == {0: 1, 1: 3, 2: 4}


@given(st.data())
def test_a_flipped_bit_costs_its_block_and_no_other(descriptor: int, data: st.DataObject) -> None:
    tier = emptied(descriptor)
    blocks = {0: 1, 2: 3, 4: 5}
    write(tier, blocks)
    damaged = data.draw(st.sampled_from(sorted(blocks)))
    block_bytes = tier.blocks[0].nbytes
    places = {
        "index": (INDEX_START + damaged * INDEX_ENTRY, INDEX_ENTRY),
        "bytes": (os.fstat(descriptor).st_size - (NUM_BLOCKS - damaged) * block_bytes, block_bytes),
    }
    start, length = places[data.draw(st.sampled_from(sorted(places)))]
    at, bit = start + data.draw(st.integers(0, length - 1)), data.draw(st.integers(0, 7))
    (byte,) = os.pread(descriptor, 1, at)
    os.pwrite(descriptor, bytes([byte ^ 1 << bit]), at)
    after = kept(opened(descriptor))
    assert after in ({block: number for block, number in blocks.items() if block != damaged}, blocks)
    # What is written in its place counts again.
    write(tier, {damaged: 8})
    assert kept(opened(descriptor)) == blocks | {damaged: 8}


def test_copies_of_a_gpu_count_once_they_are_whole_unless_their_block_is_written_anew(descriptor: int) -> None:
    tier = emptied(descriptor)
    whole, checked = threading.Event(), threading.Event()

    class Event:
        def __init__(self, waits_for: threading.Event, *, says: threading.Event | None = None) -> None:
            self.waits_for, self.says = waits_for, says

        def synchronize(self) -> None:
            if self.says is not None:  # Those before it have been finished.
                self.says.set()
            assert self.waits_for.wait(30)

    blocks = np.array([0, 1], np.int32)
    names = np.frombuffer(name(1) + name(2), np.uint8)
    writes = tier.begin(blocks)
    tier.blocks[0], tier.blocks[1] = 1, 2
    tier.finish_after(Event(whole), blocks, names, writes)
    assert kept(opened(descriptor)) == {}
    write(tier, {3: 4})
    tier.begin(blocks[1:])
    tier.finish_after(Event(whole, says=checked), blocks[:0], names[:0], writes[:0])
    whole.set()
    assert checked.wait(30)
    assert kept(opened(descriptor)) == {0: 1, 3: 4}


def test_another_tier_follows_in_the_same_memory(descriptor: int) -> None:
    os.ftruncate(descriptor, 0)

    def both(identity: bytes) -> list[HostTier]:
        first = HostTier(descriptor, identity, NUM_BLOCKS, SHAPE, "float32")
        second = HostTier(descriptor, identity, 3, (7,), "float32", start=first.end)
        assert (first.inventory(), second.inventory()) is not None
        return [first, second]

    tiers = both(ID)
    write(tiers[0], {1: 5, 4: 6})
    write(tiers[1], {2: 7}, group=1)
    again = both(ID)
    assert kept(again[0]) == {1: 5, 4: 6}
    assert again[1].inventory() == (2).to_bytes(4, "little") + name(7, 1)
    assert (again[1].blocks[2] == 7).all()
    assert [tier.inventory() for tier in both(bytes(32))] == [b"", b""]


def test_a_tier_may_have_names_alone(descriptor: int) -> None:
    os.ftruncate(descriptor, 0)
    write(HostTier(descriptor, ID, 3, (0,), "float32"), {1: 9})
    assert HostTier(descriptor, ID, 3, (0,), "float32").inventory() == (1).to_bytes(4, "little") + name(9)
