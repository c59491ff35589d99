import asyncio
from typing import Any

import pytest

from pyllm.core.pausing import REASON
from pyllm.wire.heartbeat import HEARTBEAT_INTERVAL
from pyllm.wire.messages import Call, FinishCode, Heartbeat, Reply
from pyllm.wire.supervision_messages import Kept
from tests.core.counting_executor import CountingExecutor
from tests.core.raw_engine import EPOCH, Engine


def ask(engine: Engine, number: int, method: str, *args: Any) -> None:
    engine.receive(Call(EPOCH, number, method, args))


def answers(engine: Engine) -> dict[int, tuple[bool, Any]]:
    return {reply.id: (reply.ok, reply.value) for reply in engine.messages(Reply)}


def stages(engine: Engine) -> list[str]:
    return [beat.stage for beat in engine.messages(Heartbeat)]


async def turns() -> None:
    """Let answers of calls be sent."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("depth", [1, 2])
async def test_wait_ends_what_has_begun_and_keeps_the_rest_in_the_queue(depth: int) -> None:
    engine = Engine(depth=depth)
    engine.submit(1, [1, 2, 3], max_tokens=6)
    await engine.core.step()
    ask(engine, 10, "pause", "wait")
    engine.submit(2, [10, 11, 12], max_tokens=3)
    await engine.run_dry()
    await turns()
    assert engine.outputs() == {1: ([4, 5, 6, 7, 8, 9], FinishCode.LENGTH)}
    assert answers(engine)[10] == (True, None)
    assert stages(engine)[-1] == "paused"
    ask(engine, 11, "is_paused")
    ask(engine, 12, "resume")
    await engine.run_dry()
    assert answers(engine)[11] == (True, True)
    assert engine.outputs()[2] == ([13, 14, 15], FinishCode.LENGTH)
    assert stages(engine)[-1] == "ready"


async def test_abort_ends_all_and_forgets_the_cache_unless_it_may_stay() -> None:
    for clear in (True, False):
        engine = Engine()
        engine.submit(1, list(range(12)), max_tokens=60)
        await engine.core.step()
        engine.submit(2, list(range(20, 32)), max_tokens=60)
        ask(engine, 10, "pause", "abort", clear)
        await engine.run_dry()
        await turns()
        assert {finish for _, finish in engine.outputs().values()} == {FinishCode.ABORT}
        assert len(engine.outputs()) == 2
        assert (engine.core.stats()["num_cached_blocks"] == 0) is clear
        assert answers(engine)[10] == (True, None)


@pytest.mark.parametrize("depth", [1, 2])
async def test_keep_freezes_requests_and_they_go_on_as_if_nothing_had_been(depth: int) -> None:
    engine = Engine(depth=depth)
    engine.submit(1, [1, 2, 3], max_tokens=20)
    await engine.core.step()
    ask(engine, 10, "pause", "keep")
    await engine.run_dry()
    await turns()
    assert answers(engine)[10] == (True, None)
    num_plans = len(engine.executor.plans)
    await engine.core.step()
    assert len(engine.executor.plans) == num_plans
    assert engine.call("explain", 1).value[0]["reason"] == "paused"
    engine.call("resume")
    await engine.run_dry()
    assert engine.outputs()[1] == ([4 + index for index in range(20)], FinishCode.LENGTH)


async def test_a_pause_is_no_stall() -> None:
    engine = Engine()
    engine.submit(1, [1, 2, 3], max_tokens=20)
    await engine.core.step()
    ask(engine, 10, "pause", "keep")
    await engine.run_dry()
    for _ in range(int(2000 / HEARTBEAT_INTERVAL)):
        engine.now += HEARTBEAT_INTERVAL
        engine.core.beat()
    assert set(stages(engine)) == {"paused"}
    assert engine.messages(Heartbeat)[-1].reason == REASON
    assert engine.executor.num_restarts == 0


async def test_workers_that_die_while_what_runs_ends_change_no_answer() -> None:
    engine = Engine(CountingExecutor(dies_at=[3]))
    engine.submit(1, [1, 2, 3], max_tokens=8)
    await engine.core.step()
    ask(engine, 10, "pause", "wait")
    engine.submit(2, [10], max_tokens=2)
    await engine.run_dry()
    await turns()
    assert engine.executor.num_restarts == 1
    assert engine.outputs() == {1: ([4 + index for index in range(8)], FinishCode.LENGTH)}
    assert answers(engine)[10] == (True, None)


async def test_a_resume_refuses_the_pause_that_still_waits() -> None:
    engine = Engine()
    engine.submit(1, [1, 2, 3], max_tokens=8)
    await engine.core.step()
    ask(engine, 10, "pause", "wait")
    await turns()
    ask(engine, 11, "resume")
    await turns()
    assert answers(engine)[10] == (False, "the engine was resumed before all requests had ended")
    await engine.run_dry()
    assert engine.outputs()[1][1] == FinishCode.LENGTH


async def test_the_next_core_is_paused_too() -> None:
    kept: list[Kept] = []
    engine = Engine(keep=kept.append)
    ask(engine, 10, "pause", "keep")
    await engine.run_dry()
    pauses = [each.pause for each in kept if each.pause is not None]
    successor = Engine(earlier=Kept(pause=pauses[-1]))
    successor.submit(1, [1], max_tokens=2)
    await successor.run_dry()
    assert successor.outputs() == {}
    successor.call("resume")
    await successor.run_dry()
    assert successor.outputs()[1] == ([2, 3], FinishCode.LENGTH)


@pytest.mark.parametrize("mode", ["freeze", "", "WAIT"])
async def test_an_unknown_mode_is_refused(mode: str) -> None:
    engine = Engine()
    ask(engine, 10, "pause", mode)
    await turns()
    ok, text = answers(engine)[10]
    assert not ok
    assert "mode must be one of abort, wait, keep" in text
    assert engine.call("is_paused").value is False
