"""How an engine starts, with places that only say what becomes of them; `e2e/test_ways_in.py` has real processes."""

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from pyllm.engine.async_engine import AsyncEngine
from pyllm.errors import EngineDeadError, PyllmError
from pyllm.supervision.supervised_process import SupervisedProcess


class LoadingCore:
    """A child that is never ready."""

    def __init__(self) -> None:
        self.is_stopped = False
        self.is_killed = False

    async def start(self, on_lost: Callable[[BaseException], None]) -> str:
        await asyncio.Event().wait()
        return ""

    async def stop(self, grace: float) -> None:
        await asyncio.sleep(0)
        self.is_stopped = True

    def kill(self) -> None:
        self.is_killed = True


class LostCore(LoadingCore):
    """A child that is ready, and then gone for good."""

    async def start(self, on_lost: Callable[[BaseException], None]) -> str:
        on_lost(OSError("no more of it"))
        return ""


def engine_of(model: str, *processes: LoadingCore) -> AsyncEngine:
    engine = AsyncEngine(model, device="cpu")
    engine._processes._processes = [cast(SupervisedProcess, process) for process in processes]
    return engine


async def test_what_is_lost_for_good_while_the_rest_starts_ends_the_start(model: str) -> None:
    processes = LoadingCore(), LostCore()
    with pytest.raises(EngineDeadError, match="no more of it"):
        await engine_of(model, *processes).start()
    assert all(process.is_stopped for process in processes)


async def test_a_second_start_is_refused_and_changes_nothing(model: str) -> None:
    process = LoadingCore()
    engine = engine_of(model, process)
    starting = asyncio.create_task(engine.start())
    await asyncio.sleep(0)
    with pytest.raises(PyllmError, match="started already"):
        await engine.start()
    assert not process.is_stopped
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert process.is_stopped


async def test_two_that_close_an_engine_at_once_stop_everything(model: str) -> None:
    processes = LoadingCore(), LoadingCore()
    engine = engine_of(model, *processes)
    await asyncio.gather(engine.close(), engine.close())
    assert all(process.is_stopped for process in processes)


async def test_a_close_that_is_cancelled_leaves_nothing_behind(model: str) -> None:
    processes = LoadingCore(), LoadingCore()
    closing = asyncio.create_task(engine_of(model, *processes).close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert not any(process.is_stopped for process in processes)
    assert all(process.is_killed for process in processes)


async def test_the_first_requests_start_an_engine_once_and_hear_why_it_failed(model: str) -> None:
    engine = engine_of(model, LoadingCore(), LostCore())
    failures = await asyncio.gather(*(engine.complete("x") for _ in range(3)), return_exceptions=True)
    assert [str(failure) for failure in failures] == [str(failures[0])] * 3
    assert "no more of it" in str(failures[0])
    with pytest.raises(EngineDeadError, match="not running"):  # It is not tried again.
        await engine.complete("x")
    assert not engine.is_running
    assert engine.errored
    with pytest.raises(EngineDeadError, match="not running"):
        await engine.check_health()


async def test_who_waits_for_a_start_hears_of_the_end(model: str) -> None:
    for end in (AsyncEngine.close, AsyncEngine.shutdown):
        process = LoadingCore()
        engine = engine_of(model, process)
        waiting = asyncio.create_task(engine.complete("x"))
        while not engine._processes.is_started:
            await asyncio.sleep(0)
        ended = end(engine)
        if ended is not None:
            await ended
        with pytest.raises(EngineDeadError, match="not running"):
            await waiting
        while not process.is_stopped:
            await asyncio.sleep(0)
