"""How an engine starts, with places that only say what becomes of them; `e2e/test_ways_in.py` has real processes."""

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from pyllm.async_engine import AsyncEngine
from pyllm.errors import EngineDeadError, PyllmError
from pyllm.supervision.supervised_process import SupervisedProcess
from tests.tiny_model import write_tiny_model


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


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


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
