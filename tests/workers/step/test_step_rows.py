"""How a plan's rows are split for a selector, and which blocks a plan writes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pyllm.workers.devices.host import HostDevice
from pyllm.workers.step.batch import Batch, PlanBuffer
from pyllm.workers.step.step_rows import split_rows, written_blocks
from tests.plans import Planner, encode

NUM_SLOTS = 8


def load(sections: dict[str, list[int]]) -> Batch:
    counts, frame = encode(sections)
    return PlanBuffer(HostDevice()).load(counts, frame)


@given(rows=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 20), st.integers(1, 30)), max_size=NUM_SLOTS))
def test_each_token_of_an_output_is_a_row_and_a_prompt_stays_whole(rows: list[tuple[int, int, int]]) -> None:
    """Rows of (new tokens, tokens before them, length of the prompt)."""
    starts = np.cumsum([0, *(num_tokens for num_tokens, _, _ in rows)])
    slots = list(range(NUM_SLOTS))[::-1][: len(rows)]
    prompt_lengths = np.zeros(NUM_SLOTS, np.int32)
    prompt_lengths[slots] = [prompt for _, _, prompt in rows]
    batch = load(
        {
            "tokens": [0] * int(starts[-1]),
            "positions": [0] * int(starts[-1]),
            "slot_mapping": [0] * int(starts[-1]),
            "query_starts": starts.tolist(),
            "sequence_lengths": [num_tokens + context for num_tokens, context, _ in rows],
            "slots": slots,
            "sampled_starts": [0] * (len(rows) + 1),
        }
    )
    split = split_rows(batch, prompt_lengths)
    # By the definition: what each row of the split is, and in which order.
    expected = []
    for slot, (num_tokens, context, prompt) in zip(slots, rows, strict=True):
        of_prompt = min(max(prompt - context, 0), num_tokens)
        if of_prompt:
            expected.append((slot, of_prompt, context + of_prompt, 0))
        expected += [(slot, 1, context + index + 1, 1) for index in range(of_prompt, num_tokens)]
    found = zip(split.slots, np.diff(split.query_starts), split.sequence_lengths, split.is_sparse, strict=True)
    assert [tuple(int(number) for number in row) for row in found] == expected
    assert split.query_starts[0] == 0
    assert all(array.dtype == np.int32 for array in split)


def test_a_plan_writes_where_its_tokens_go_and_what_it_copies_and_swaps_in() -> None:
    batch = load(
        {
            "tokens": [1, 2, 3],
            "positions": [0, 1, 2],
            "slot_mapping": [35, 36, -1],
            "query_starts": [0, 3],
            "sampled_starts": [0, 0],
            "slots": [0],
            "sequence_lengths": [3],
            "block_copies": [2, 5, 3, 6],
            "swaps": [0, 7, 1, 1, 9, 2],
        }
    )
    assert written_blocks(batch, 4).tolist() == [5, 6, 8, 9]


def test_nothing_is_written_by_a_plan_that_only_starts_a_slot() -> None:
    planner = Planner()
    planner.start(0)
    step, frame = planner.step()
    assert written_blocks(PlanBuffer(HostDevice()).load(step.counts, frame), 16).tolist() == []
