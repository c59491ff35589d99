"""Which rows of a step share a program: those that go on from one another, in their order."""

import torch
from pyllm_kernels import Kernels, StateRows, select
from pyllm_kernels.ops.state_tasks import plan_states


def tasks_of(triton: Kernels, sources: list[int], destinations: list[int]) -> tuple[list[int], list[int]]:
    numbers = (torch.tensor(each, dtype=torch.int32) for each in (range(len(sources) + 1), sources, destinations))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tasks = triton[plan_states](StateRows(*(tensor.to(device) for tensor in numbers))).tasks
    return tasks.firsts.tolist(), tasks.following.tolist()


def test_rows_of_other_sequences_have_programs_of_their_own(device: torch.device) -> None:
    triton = select("triton", device)
    assert tasks_of(triton, [-1, 0, 1, -1], [0, 1, 2, -1]) == ([0, 0, 0, 3], [1, 2, 4, 4])
    assert tasks_of(triton, [5, -1, -1], [5, -1, -1]) == ([0, 1, 2], [3, 3, 3])
    assert tasks_of(triton, [-1], [-1]) == ([0], [1])
    assert tasks_of(triton, [], []) == ([], [])


def test_a_checkpoint_of_the_step_makes_a_tree(device: torch.device) -> None:
    # Rows 1 and 3 begin where row 0 ends, row 5 where row 3 does; row 2 writes in place, and row 6 goes on from it.
    sources, destinations = [-1, 3, 7, 3, -1, 5, 7], [3, 4, 7, 5, -1, -1, 8]
    found = tasks_of(select("triton", device), sources, destinations)
    assert found == ([0, 0, 2, 0, 4, 0, 2], [1, 3, 6, 5, 7, 7, 7])


def test_a_state_may_be_read_that_a_later_row_writes_anew(device: torch.device) -> None:
    found = tasks_of(select("triton", device), [2, 2, 2], [2, 2, -1])
    assert found == ([0, 0, 0], [1, 2, 3])


def test_cpus_need_no_tasks() -> None:
    rows = StateRows(None, None, None)
    assert select("cpu", "cpu")[plan_states](rows) is rows
