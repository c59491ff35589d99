"""Plans from the wire: every section lands where it belongs, and what does not add up is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllm.errors import ProtocolError
from pyllm.wire.plan_layout import PLAN_SECTIONS
from pyllm.workers.devices.host import HostDevice
from pyllm.workers.step.batch import PlanBuffer, check_counts
from tests.plans import Planner, Row, encode

CPU = HostDevice()


@st.composite
def consistent_counts(draw: st.DrawFn) -> dict[str, int]:
    size = st.integers(0, 40)
    swaps, state_swaps = draw(size), draw(size)
    tokens, rows, sampled, changes, inits = (draw(size) for _ in range(5))
    counts = {
        **dict.fromkeys(("tokens", "positions", "slot_mapping"), tokens),
        **dict.fromkeys(("query_starts", "sampled_starts"), rows + 1),
        **dict.fromkeys(("sequence_lengths", "slots"), rows),
        **dict.fromkeys(("logits_rows", "uniforms"), sampled),
        **dict.fromkeys(("table_slots", "table_indices", "table_blocks"), changes),
        "block_copies": 2 * draw(size),
        "swaps": 3 * swaps,
        "swap_names": 40 * draw(st.integers(0, swaps)),
        "state_swaps": 3 * state_swaps,
        "state_swap_names": 40 * draw(st.integers(0, state_swaps)),
        "slot_copies": 2 * draw(size),
        "slot_inits": inits,
        "sampling_starts": inits + 1,
        "sampling": draw(size),
        "history_starts": inits + 1,
        "histories": draw(size),
        "prompt_lengths": inits,
        **dict.fromkeys(("state_sources", "state_destinations"), draw(st.sampled_from((0, rows)))),
        "adapter_slots": draw(st.sampled_from((0, inits))),
        "adapter_loads": 2 * draw(size),
    }
    return {name: counts[name] for name, _ in PLAN_SECTIONS}


@given(consistent_counts(), st.integers(1, 7))
def test_every_section_comes_out_as_it_went_in(counts: dict[str, int], capacity: int) -> None:
    sections = {}
    for index, (name, kind) in enumerate(PLAN_SECTIONS):
        values = (np.arange(counts[name]) + index) % 251
        sections[name] = values * 0.5 if kind == "f" else values
    batch = PlanBuffer(CPU, capacity).load(*encode(sections))
    for name, expected in sections.items():
        np.testing.assert_array_equal(getattr(batch.host, name), expected)
        np.testing.assert_array_equal(getattr(batch.device, name), expected)
    assert (batch.num_tokens, batch.num_rows) == (counts["tokens"], counts["slots"])


def test_lengths_are_the_largest_of_any_row() -> None:
    planner = Planner()
    for slot in range(3):
        planner.start(slot)
    planner.step(Row(0, [1] * 30))
    step, frame = planner.step(Row(1, [1] * 20), Row(0, [2]), Row(2, [3] * 4))
    batch = PlanBuffer(CPU).load(step.counts, frame)
    assert (batch.max_query_length, batch.max_sequence_length) == (20, 31)
    assert (batch.num_tokens, batch.num_rows) == (25, 3)


def test_an_empty_plan_is_a_batch() -> None:
    batch = PlanBuffer(CPU).load(*encode({}))
    assert (batch.num_tokens, batch.num_rows, batch.max_query_length, batch.max_sequence_length) == (0, 0, 0, 0)


@pytest.mark.parametrize("change", [b"", b"\x00"])
def test_a_frame_of_another_length_is_refused(change: bytes) -> None:
    planner = Planner()
    planner.start(0)
    step, frame = planner.step(Row(0, [1, 2, 3]))
    with pytest.raises(ProtocolError, match=rf"has {len(frame)} bytes, but \d+ came"):
        PlanBuffer(CPU).load(step.counts, frame + change if change else frame[:-1])


@given(consistent_counts(), st.sampled_from([name for name, _ in PLAN_SECTIONS]), st.integers(1, 5))
def test_counts_that_do_not_go_together_are_refused(counts: dict[str, int], name: str, excess: int) -> None:
    check_counts(tuple(counts.values()))
    free = {
        "sampling": excess,
        "histories": excess,
        "block_copies": 2 * excess,
        "slot_copies": 2 * excess,
        "swaps": 3 * excess,
        "state_swaps": 3 * excess,
        "adapter_slots": excess,
        "adapter_loads": 2 * excess,
    }
    wrong = counts | {name: -excess} if name in free else counts | {name: counts[name] + excess}
    with pytest.raises(ProtocolError):
        check_counts(tuple(wrong.values()))


@pytest.mark.parametrize("counts", [(), (0,) * 27, (0,) * 29])
def test_another_number_of_sections_is_refused(counts: tuple[int, ...]) -> None:
    with pytest.raises(ProtocolError, match="28 counts"):
        check_counts(counts)
