"""What a core noted of its last steps is found in its memory, at whichever word it ended."""

from array import array
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllm._rust import Plan, Scheduler, SchedulerError
from pyllm.supervision.step_trace import MAX_ROWS, NUM_STEPS, StepTrace, last_steps, size
from tests.core.raw_engine import EPOCH, Engine
from tests.core.remembering_executor import RememberingExecutor
from tests.plan_reader import read_plan

MAX_NUM_SEQS = 8


class Noted(NamedTuple):
    """A step that was noted, by the scheduler's other words on it."""

    plan: Plan
    requests: list[dict[str, int]]  # of its rows, each once


class Core:
    """A scheduler whose plans are noted, and answered in order. Clients and requests have numbers of all sizes."""

    def __init__(self, num_samples: list[int], room: int = MAX_NUM_SEQS) -> None:
        self.scheduler = Scheduler(
            block_size=4,
            num_blocks=256,
            max_num_seqs=MAX_NUM_SEQS,
            max_num_batched_tokens=16,
            max_model_len=128,
            vocab_size=1000,
        )
        for number, n in enumerate(num_samples):
            prompt = array("i", range(1, 4 + number))
            request = number if number % 2 else 2**64 - 1 - number
            self.scheduler.add(number % 3, request, prompt.tobytes(), seed=0, n=n, max_tokens=100)
        self.memory = bytearray(size(room))
        self.box = StepTrace(self.memory, EPOCH)
        self.noted: list[Noted] = []
        self.num_over = 0

    def plan(self) -> bool:
        plan = self.scheduler.schedule(0.0)
        if plan is None:
            return False
        self.scheduler.note_step(plan, self.box.note(plan.step))
        names = [self.scheduler.request_of(plan.step, row) for row in range(plan.num_rows)]
        requests = [{"client": name[0], "request": name[1]} for name in dict.fromkeys(names) if name is not None]
        self.noted.append(Noted(plan, requests))
        return True

    def commit(self) -> None:
        plan, _ = self.noted[self.num_over]
        starts = array("i", read_plan(plan)["sampled_starts"].tolist())
        self.scheduler.commit(plan.step, starts.tobytes(), array("i", [7] * starts[-1]).tobytes())
        self.box.end(plan.step)
        self.num_over += 1

    def expected(self) -> dict[str, Any]:
        in_flight = self.noted[self.num_over :]
        suspects = {tuple(request.values()): request for noted in in_flight for request in noted.requests}
        return {
            "epoch": EPOCH,
            "steps_in_flight": [plan.step for plan, _ in in_flight],
            "suspects": list(suspects.values()),
            "steps": [
                {"step": plan.step, "num_tokens": plan.num_tokens, "num_rows": plan.num_rows, "requests": requests}
                for plan, requests in self.noted[-NUM_STEPS:]
            ],
        }


@given(
    num_samples=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    num_steps=st.integers(0, 2 * NUM_STEPS),
    depth=st.integers(1, 3),
)
def test_the_last_steps_are_known_and_which_of_them_were_in_flight(
    num_samples: list[int], num_steps: int, depth: int
) -> None:
    core = Core(num_samples)
    for _ in range(num_steps):
        if not core.plan():
            break
        if len(core.noted) - core.num_over == depth:
            core.commit()
    assert last_steps(bytes(core.memory)) == core.expected()


@given(num_before=st.sampled_from([0, 1, 5, NUM_STEPS, NUM_STEPS + 3]), data=st.data())
def test_a_note_that_was_half_written_is_left_out_and_no_other(num_before: int, data: st.DataObject) -> None:
    core = Core([2, 1, 3])
    for _ in range(num_before):
        assert core.plan()
        core.commit()
    whole_before, before = core.expected(), bytes(core.memory)
    assert core.plan()
    whole_after, after = core.expected(), bytes(core.memory)
    words = [place for place in range(0, len(after), 4) if after[place : place + 4] != before[place : place + 4]]
    written = data.draw(st.sets(st.sampled_from(words)))
    torn = bytearray(before)
    for place in written:
        torn[place : place + 4] = after[place : place + 4]
    if len(written) == len(words):
        expected = [whole_after]
    else:  # What was there before may be overwritten, the step itself was not submitted yet.
        expected = [whole_before, whole_before | {"steps": whole_after["steps"][:-1]}]
    assert last_steps(bytes(torn)) in expected


@given(st.integers(1, 7))
def test_more_rows_than_there_is_room_for_are_counted(room: int) -> None:
    core = Core([1] * MAX_NUM_SEQS, room)
    while not core.noted or core.noted[-1].plan.num_rows < MAX_NUM_SEQS:
        assert core.plan()
        core.commit()
    step = last_steps(bytes(core.memory))["steps"][-1]
    assert step["num_rows"] == MAX_NUM_SEQS
    assert step["requests"] == core.noted[-1].requests[:room]


def test_it_is_bounded() -> None:
    assert size(1 << 16) == size(MAX_ROWS) < 1 << 20


@given(st.binary(min_size=size(1), max_size=size(1)))
def test_whatever_is_there_is_read(memory: bytes) -> None:
    assert len(last_steps(memory).get("steps", [])) <= NUM_STEPS


@pytest.mark.parametrize("memory", [b"", bytes(size(4))])
def test_who_has_not_begun_has_no_steps(memory: bytes) -> None:
    assert last_steps(memory) == {}


def test_a_note_that_cannot_be_written_is_refused() -> None:
    core = Core([1])
    plan = core.scheduler.schedule(0.0)
    assert plan is not None
    with pytest.raises(SchedulerError, match="a buffer of 5 words is too short for a note"):
        core.scheduler.note_step(plan, array("I", [0] * 5))
    with pytest.raises(SchedulerError, match="a note takes a writable buffer"):
        core.scheduler.note_step(plan, memoryview(bytes(64)).cast("I"))
    with pytest.raises(BufferError):
        core.scheduler.note_step(plan, bytearray(64))
    core.scheduler.lose_device()
    with pytest.raises(SchedulerError, match="step 0 is not in flight"):
        core.scheduler.note_step(plan, core.box.note(0))


@pytest.mark.parametrize("depth", [1, 2])
async def test_a_core_notes_its_steps_over_the_death_of_its_workers(depth: int) -> None:
    memory = bytearray(size(MAX_NUM_SEQS))
    engine = Engine(RememberingExecutor(deaths=[3]), depth=depth, memory=memory)
    engine.submit(5, [1, 2], max_tokens=8)
    engine.submit(6, [3], max_tokens=8)
    await engine.core.step()
    noted = last_steps(bytes(memory))
    assert noted["epoch"] == EPOCH
    assert noted["steps_in_flight"] == [1][: depth - 1]
    assert noted["suspects"] == [{"client": 0, "request": 5}, {"client": 0, "request": 6}][: 2 * (depth - 1)]
    await engine.run_dry()
    noted = last_steps(bytes(memory))
    assert noted["steps_in_flight"] == noted["suspects"] == []
    assert [step["step"] for step in noted["steps"]] == list(range(engine.core.last_step + 1))
