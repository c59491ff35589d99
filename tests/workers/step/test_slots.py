"""Slots: copies and table changes, in that order, whatever they touch."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllm.workers.devices.host import HostDevice
from pyllm.workers.step.batch import Batch, PlanBuffer
from pyllm.workers.step.slots import Slots
from tests.plans import Planner, Row, encode

CPU = HostDevice()
NUM_SLOTS, NUM_BLOCKS = 6, 4


@pytest.fixture
def slots() -> Slots:
    return Slots(NUM_SLOTS, NUM_BLOCKS, CPU)


def batch(**sections: list[int]) -> Batch:
    return PlanBuffer(CPU).load(*encode(dict(sections)))


def step(planner: Planner, *rows: Row) -> Batch:
    header, frame = planner.step(*rows)
    return PlanBuffer(CPU).load(header.counts, frame)


def numbered(slots: Slots) -> None:
    """Give every slot a table and a last token of its own."""
    slots.block_tables[:] = np.arange(NUM_SLOTS * NUM_BLOCKS).reshape(NUM_SLOTS, NUM_BLOCKS)
    slots.last_tokens[:] = np.arange(NUM_SLOTS) * 100
    slots.prompt_lengths[:] = np.arange(NUM_SLOTS) * 10


@given(st.lists(st.tuples(st.integers(0, NUM_SLOTS - 1), st.integers(0, NUM_SLOTS - 1)), max_size=8))
def test_copies_happen_one_after_the_other(pairs: list[tuple[int, int]]) -> None:
    slots = Slots(NUM_SLOTS, NUM_BLOCKS, CPU)
    numbered(slots)
    origins = list(range(NUM_SLOTS))
    for source, destination in pairs:
        origins[destination] = origins[source]
    slots.apply(batch(slot_copies=[slot for pair in pairs for slot in pair]))
    assert slots.last_tokens.tolist() == [origin * 100 for origin in origins]
    assert slots.prompt_lengths.tolist() == [origin * 10 for origin in origins]
    assert slots.block_tables[:, 1].tolist() == [origin * NUM_BLOCKS + 1 for origin in origins]


def test_a_slot_that_is_initialised_has_the_length_of_its_prompt(slots: Slots) -> None:
    numbered(slots)
    inits = {"slot_inits": [1, 5], "prompt_lengths": [7, 9], "sampling_starts": [0, 0, 0]}
    slots.apply(batch(slot_copies=[5, 2], **inits))
    assert slots.prompt_lengths.tolist() == [0, 7, 50, 30, 40, 9], "copies come first"


def test_table_changes_come_last(slots: Slots) -> None:
    numbered(slots)
    slots.apply(batch(slot_copies=[2, 4], table_slots=[4, 4, 0], table_indices=[0, 3, 1], table_blocks=[70, 73, 71]))
    assert slots.block_tables[4].tolist() == [70, 9, 10, 73]
    assert slots.block_tables[0].tolist() == [0, 71, 2, 3]
    assert slots.block_tables[2].tolist() == [8, 9, 10, 11]


def test_unknown_tokens_are_the_last_ones_sampled(slots: Slots) -> None:
    planner = Planner()
    for slot in (0, 2, 4):
        planner.start(slot)
    first = step(planner, Row(4, [1, 2]), Row(0, [3], ()), Row(2, [4, 5, 6], (0.1, 0.2)))
    slots.apply(first)
    assert slots.known_tokens(first).tolist() == [1, 2, 3, 4, 5, 6]
    slots.remember(first, np.array([40, 21, 22], np.int32))
    assert slots.last_tokens.tolist() == [0, 0, 22, 0, 40, 0]
    second = step(planner, Row(2, [-1]), Row(0, [7, 8]), Row(4, [-1]))
    slots.apply(second)
    assert slots.known_tokens(second).tolist() == [22, 7, 8, 40]
    assert second.host.tokens.tolist() == [-1, 7, 8, -1]
    np.testing.assert_array_equal(second.host.positions, [3, 1, 2, 2])


@given(st.lists(st.integers(0, 3), min_size=1, max_size=NUM_SLOTS), st.integers(0, 2))
def test_a_graph_keeps_the_tokens_that_are_remembered(numbers: list[int], padding: int) -> None:
    planner = Planner()
    rows = [Row(slot, [1], (0.5,) * number) for slot, number in reversed(list(enumerate(numbers)))]
    for row in rows:
        planner.start(row.slot)
    plan, sampled = step(planner, *rows), np.arange(100, 100 + sum(numbers), dtype=np.int32)
    host, device = Slots(NUM_SLOTS, NUM_BLOCKS, CPU), Slots(NUM_SLOTS, NUM_BLOCKS, CPU)
    host.remember(plan, sampled)
    keepers = np.pad(device.keepers(plan), (0, padding), constant_values=device.nobody)
    device.keep(keepers, np.pad(sampled, (0, padding), constant_values=9))
    assert device.last_tokens.tolist() == host.last_tokens.tolist()
