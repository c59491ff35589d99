"""Which step takes too long, by a clock that the test sets."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllm._rust import Plan
from pyllm.core.faults.stalls import StallWatch, bound
from pyllm.wire.messages import FinishCode, Heartbeat, Sampled
from tests.core.counting_executor import CountingExecutor
from tests.core.raw_engine import Engine
from tests.waiting import until


@pytest.mark.parametrize(("expected", "seconds"), [(None, 600.0), (0.0, 5.0), (0.02, 5.0), (0.5, 5.0), (3.0, 30.0)])
def test_the_bound_follows_what_was_measured(expected: float | None, seconds: float) -> None:
    assert bound(expected) == seconds


@pytest.mark.parametrize(("most", "seconds"), [(0.0, 30.0), (0.5, 30.0), (5.0, 50.0), (900.0, 600.0)])
def test_before_that_it_follows_what_a_step_may_take_at_most(most: float, seconds: float) -> None:
    assert bound(None, most) == seconds
    assert bound(0.01, most) == 5.0


def test_a_step_is_stalled_beyond_its_bound_and_hopeless_beyond_three() -> None:
    watch = StallWatch()
    seen = []
    for half_seconds in range(40):
        watch.look(half_seconds / 2, 7, 0.01)
        seen.append((watch.is_stalled, watch.is_hopeless))
    assert seen.index((True, False)) == 11
    assert seen.index((True, True)) == 31
    assert "step 7 has taken more than 5 s" in watch.reason
    watch.look(20.0, 8, 0.01)
    assert not watch.is_stalled


@given(st.lists(st.tuples(st.floats(0.01, 0.99), st.booleans()), max_size=200))
def test_what_goes_on_is_never_stalled(looks: list[tuple[float, bool]]) -> None:
    watch, now, step, since = StallWatch(), 0.0, 0, 0.0
    for pause, goes_on in looks:
        now += pause
        if goes_on or now - since > 5.0:
            step, since = step + 1, now
        watch.look(now, step, 0.0)
        assert not watch.is_stalled


def test_time_in_which_nobody_looked_is_held_against_no_step() -> None:
    watch = StallWatch()
    watch.look(0.0, 1, 0.0)
    watch.look(3600.0, 1, 0.0)
    assert not watch.is_stalled


def test_what_rests_is_not_stalled() -> None:
    watch = StallWatch()
    for second in range(60):
        watch.look(float(second), 1, 0.0)
    watch.rest()
    assert not watch.is_stalled


class StuckExecutor(CountingExecutor):
    """Answers no step from `stuck_at` on until it is restarted."""

    def __init__(self, stuck_at: int) -> None:
        super().__init__()
        self.stuck_at = stuck_at
        self.stuck: list[asyncio.Future[Sampled]] = []

    def submit(self, plan: Plan, transfers: bytes = b"") -> asyncio.Future[Sampled]:
        if plan.step != self.stuck_at:
            return super().submit(plan, transfers)
        self._sampled = self.sample(plan)
        self.stuck.append(asyncio.get_running_loop().create_future())
        return self.stuck[-1]

    def answer(self) -> None:
        """The step was slow, and no more."""
        self.stuck.pop().set_result(self._sampled)

    def kill(self, cause: object) -> None:
        super().kill("stalled")
        assert cause == "stalled"
        assert self.death is not None
        self.stuck.pop().set_exception(self.death)


async def test_workers_that_are_stuck_are_replaced_and_clients_hear_of_it() -> None:
    executor = StuckExecutor(stuck_at=4)
    engine = Engine(executor)
    running = asyncio.ensure_future(engine.core.run())
    engine.submit(1, [1, 2], max_tokens=6)
    await until(lambda: engine.core.last_step == 3)
    assert engine.scheduler.expected_seconds(4) is None  # The fake clock stood still.
    stages = []
    for half_seconds in range(4000):
        engine.now = half_seconds / 2
        engine.receive(Heartbeat())
        engine.core.beat()
        stages.append(engine.messages(Heartbeat)[-1].stage)
        if executor.death is not None:
            break
    await until(lambda: 1 in engine.outputs() and engine.outputs()[1][1] == FinishCode.LENGTH)
    assert engine.outputs()[1][0] == [3, 4, 5, 6, 7, 8]
    assert stages.index("stalled") == 1201  # 600 s
    assert engine.now == 1800.5
    assert [beat.stage for beat in engine.messages(Heartbeat)[-2:]] == ["recovering", "ready"]
    running.cancel()


@pytest.mark.parametrize(("token_seconds", "seconds"), [(0.0, 600.0), (0.5, 40.0)])
async def test_a_first_step_that_hangs_is_stalled_by_what_its_tokens_may_take(
    token_seconds: float, seconds: float
) -> None:
    executor = StuckExecutor(stuck_at=0)
    engine = Engine(executor, token_seconds=token_seconds)
    running = asyncio.ensure_future(engine.core.run())
    engine.submit(1, list(range(8)), max_tokens=2)
    await until(lambda: len(executor.stuck) == 1)
    times = {}
    while executor.death is None:
        engine.receive(Heartbeat())
        engine.core.beat()
        times.setdefault(engine.messages(Heartbeat)[-1].stage, engine.now)
        engine.now += 0.5
    await until(lambda: 1 in engine.outputs() and engine.outputs()[1][1] == FinishCode.LENGTH)
    assert times == {"ready": 0.0, "stalled": seconds + 0.5}
    assert engine.now == 3 * seconds + 1.0
    running.cancel()


async def test_a_first_step_that_is_busy_is_not_stalled() -> None:
    executor = StuckExecutor(stuck_at=0)
    engine = Engine(executor, token_seconds=0.5)
    running = asyncio.ensure_future(engine.core.run())
    engine.submit(1, list(range(8)), max_tokens=1)
    await until(lambda: len(executor.stuck) == 1)
    while engine.now < 40.0:
        engine.receive(Heartbeat())
        engine.core.beat()
        engine.now += 0.5
    executor.answer()
    await until(lambda: engine.core.last_step == 0)
    assert {beat.stage for beat in engine.messages(Heartbeat)} == {"ready"}
    assert engine.outputs()[1] == ([8], FinishCode.LENGTH)
    running.cancel()


async def test_a_core_with_nothing_in_flight_is_never_stalled() -> None:
    engine = Engine()
    engine.submit(1, [1, 2])
    engine.scheduler.hold(0, 1, "test")
    await engine.run_dry()
    for second in range(2000):
        engine.now = float(second)
        engine.receive(Heartbeat())
        engine.core.beat()
    assert {beat.stage for beat in engine.messages(Heartbeat)} == {"ready"}
