"""Profiles of the ranks by a call: which steps they record, one at a time, and what ends one before its time."""

import asyncio
from typing import Any

import pytest

from pyllm.core.profiling import MAX_EVENT_BYTES
from pyllm.wire.ipc import MAX_MESSAGE_BYTES
from pyllm.wire.messages import Call, Reply
from pyllm.wire.profiles import RankProfile
from tests.core.counting_executor import DEATH
from tests.core.profiled_executor import ProfiledExecutor, profile
from tests.core.raw_engine import EPOCH, Engine

SECONDS = 30.0


class PatientEngine(Engine):
    """Waits for a profile's seconds until it is `awake`; all other sleep takes no time."""

    def __init__(self, executor: Any, depth: int = 1) -> None:
        self.awake = asyncio.Event()
        super().__init__(executor, depth)

    async def sleep(self, seconds: float) -> None:
        if seconds == SECONDS:
            await self.awake.wait()
        await super().sleep(seconds)

    def ask(self, number: int, num_steps: int = 2, *, with_trace: bool = False) -> None:
        self.receive(Call(EPOCH, number, "profile", (num_steps, SECONDS, with_trace)))

    def replies(self) -> dict[int, Any]:
        return {reply.id: reply.value for reply in self.messages(Reply)}


async def let_run() -> None:
    """Let what was asked for come as far as it can without steps."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("depth", [1, 2])
async def test_it_ends_when_the_ranks_have_recorded_the_next_steps(depth: int) -> None:
    engine = PatientEngine(ProfiledExecutor(), depth)
    engine.submit(1, [1, 2, 3], max_tokens=8)
    await engine.core.step()
    engine.ask(7, 3)
    await let_run()
    assert engine.replies() == {}
    while 7 not in engine.replies():
        assert await engine.core.step()
        await let_run()
    calls = engine.executor.calls
    start, stop = calls.index(("start_profile", 3)), calls.index(("stop_profile", False))
    assert len(calls[start + 1 : stop]) in (3, 3 + depth - 1), "all three were computed; another may be in flight"
    outcome = engine.replies()[7]
    assert (outcome.ended_by, outcome.ranks) == ("steps", [profile(0), profile(1)])
    await engine.run_dry()
    assert engine.outputs()[1][0] == list(range(4, 12)), "tokens are the same"


async def test_without_traffic_it_ends_after_its_seconds_with_what_was_there() -> None:
    engine = PatientEngine(ProfiledExecutor())
    engine.ask(7, with_trace=True)
    await let_run()
    engine.awake.set()
    await let_run()
    outcome = engine.replies()[7]
    assert (outcome.ended_by, outcome.seconds) == ("seconds", SECONDS)
    assert [rank.events for rank in outcome.ranks] == [b"\0\0\0"] * 2
    assert engine.executor.calls == [("start_profile", 2), ("stop_profile", True)]


async def test_one_at_a_time() -> None:
    engine = PatientEngine(ProfiledExecutor())
    engine.ask(7)
    await let_run()
    engine.now += 4.5
    engine.ask(8)
    await let_run()
    refused = engine.replies()[8]
    assert (refused.ended_by, refused.reason) == (
        "running",
        "a profile has been running for 4.5 s: wait for its end",
    )
    engine.awake.set()
    await let_run()
    assert engine.replies()[7].ended_by == "seconds"
    engine.ask(9)
    await let_run()
    assert engine.replies()[9].ended_by == "seconds"


async def test_workers_that_die_interrupt_it_and_the_next_one_works() -> None:
    engine = PatientEngine(ProfiledExecutor())
    engine.submit(1, [1, 2, 3], max_tokens=9)
    engine.ask(7, 5)
    await let_run()
    engine.executor.dies_at = [2]
    for _ in range(3):
        await engine.core.step()
    await let_run()
    outcome = engine.replies()[7]
    assert (outcome.ended_by, outcome.reason, outcome.ranks) == ("interrupted", DEATH, [])
    assert engine.executor.num_restarts == 1
    engine.ask(8, 2)
    await let_run()
    await engine.run_dry()
    await let_run()
    assert engine.replies()[8].ended_by == "steps"
    assert engine.outputs()[1][0] == list(range(4, 13))


async def test_dead_workers_and_those_that_refuse_are_said() -> None:
    engine = PatientEngine(ProfiledExecutor(refuses="start_profile"))
    engine.ask(7)
    await let_run()
    outcome = engine.replies()[7]
    assert (outcome.ended_by, outcome.reason) == ("interrupted", "worker 1 refused a call: no memory")
    assert engine.executor.calls == [("start_profile", 2), ("stop_profile", False)], "the other rank has begun"
    engine.executor.die("killed")
    engine.ask(8)
    await let_run()
    assert engine.replies()[8].reason == DEATH


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((0, 1.0), "num_steps is 0: it must be from 1 to 100"),
        ((101, 1.0), "num_steps is 101"),
        ((1, 0.0), "seconds is 0: it must be above 0 and at most 60"),
        ((1, 60.5), "seconds is 60.5"),
        ((1, float("nan")), "seconds is nan"),
        ((1, 1.0, False, []), "ranks is []: give some of 0 to 0"),
        ((1, 1.0, False, [0, 1]), "ranks is [0, 1]: give some of 0 to 0"),
        ((1, 1.0, False, [-1]), "ranks is [-1]"),
    ],
)
async def test_bounds(arguments: tuple[Any, ...], text: str) -> None:
    engine = PatientEngine(ProfiledExecutor())
    engine.receive(Call(EPOCH, 1, "profile", arguments))
    await let_run()
    (reply,) = engine.messages(Reply)
    assert not reply.ok
    assert text in reply.value
    assert engine.executor.calls == []


async def test_traces_that_no_message_has_room_for_are_left_out() -> None:
    engine = PatientEngine(ProfiledExecutor(event_bytes=MAX_MESSAGE_BYTES // 2))
    engine.awake.set()
    engine.ask(7, with_trace=True)
    await let_run()
    ranks: list[RankProfile] = engine.replies()[7].ranks
    assert [len(rank.events) for rank in ranks] == [MAX_MESSAGE_BYTES // 2, 0]
    assert [rank.times for rank in ranks] == [profile(0).times, profile(1).times]
    assert sum(len(rank.events) for rank in ranks) <= MAX_EVENT_BYTES
