"""A worker's process behind an actor: what it says, how it ends, and that a node that is gone says nothing."""

import asyncio
import signal
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import msgspec
import pytest

from benchmarks.engine.step import core_config
from pyllm.config.process_config import WorkerConfig
from pyllm.core.executors.rank_actor import RankActor
from pyllm.core.executors.rank_relay import NODE_TIMEOUT, RankRelay
from pyllm.supervision.parent_link import ORPHANED_EXIT_CODE
from tests import waiting

until = partial(waiting.until, pause=0.01)


class Handle:
    """An actor's handle, to an actor in this process; one that is cut off loses all that it is asked."""

    def __init__(self) -> None:
        self.actor = RankActor()
        self.is_cut_off = False
        self.tasks: set[asyncio.Task[Any]] = set()

    def __getattr__(self, method: str) -> "Method":
        return Method(self, method)


class Method:
    def __init__(self, handle: Handle, method: str) -> None:
        self._handle = handle
        self._method = method

    def remote(self, *args: Any) -> Any:
        if self._handle.is_cut_off:
            return asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(getattr(self._handle.actor, self._method)(*args))
        self._handle.tasks.add(task)
        return task


class Rank:
    """A relay and what is behind it."""

    def __init__(self, node_timeout: float) -> None:
        self.handle = Handle()
        self.destroyed = 0
        self.found = asyncio.Event()
        self.found.set()
        parts = ("worker 0 of core 0", self.handle, self.destroy, self.wait_for_root_cause)
        self.relay = RankRelay(*parts, node_timeout=node_timeout)
        self.child = self.relay.child

    def destroy(self) -> None:
        self.destroyed += 1

    async def wait_for_root_cause(self) -> None:
        await self.found.wait()

    async def pid(self) -> int:
        await until(lambda: self.handle.actor._child is not None)
        assert self.handle.actor._child is not None
        return self.handle.actor._child.process.pid


@pytest.fixture
async def rank(request: pytest.FixtureRequest) -> AsyncIterator[Rank]:
    """A rank that is there; its parameter is how long a node may be silent after a kill."""
    rank = Rank(getattr(request, "param", NODE_TIMEOUT))
    await rank.relay.start()
    await rank.pid()
    yield rank
    rank.child.kill()
    await until(lambda: rank.handle.actor._code is not None)
    rank.relay.close()
    for task in rank.handle.tasks:
        task.cancel()


def worker_config(folder: str) -> WorkerConfig:
    config = core_config(folder)
    return WorkerConfig(
        engine=config.engine, checkpoint=config.checkpoint, rank=0, address="tcp://127.0.0.1:0", rendezvous=""
    )


async def test_a_worker_reports_and_fails_as_one_of_this_machine(rank: Rank, tmp_path: Any) -> None:
    config = worker_config(str(tmp_path))
    missing = msgspec.structs.replace(config.checkpoint, files=(str(tmp_path / "absent"),))
    model = msgspec.structs.replace(config.engine.model, model=str(tmp_path / "absent"))
    engine = msgspec.structs.replace(config.engine, model=model)
    rank.child.configure(msgspec.structs.replace(config, engine=engine, checkpoint=missing))
    assert await rank.child.exited == 3
    assert rank.child.failed_by_setting
    assert "absent" in rank.child.exit_summary()
    assert b"every node needs the model's files" in rank.child.log
    assert rank.destroyed == 0


async def test_a_killed_worker_has_its_exit_code(rank: Rank) -> None:
    rank.child.kill()
    assert await rank.child.exited == -signal.SIGKILL


async def test_a_worker_that_fails_is_told_of_when_the_others_have_settled(rank: Rank, tmp_path: Any) -> None:
    rank.child.started.set_result("")
    rank.found.clear()
    rank.child.configure(msgspec.structs.replace(worker_config(str(tmp_path)), address="none"))
    await until(lambda: rank.handle.actor._code is not None)
    assert not rank.child.exited.done()
    rank.found.set()
    assert await rank.child.exited > 0


async def test_a_worker_that_is_lost_is_an_orphan_and_says_why(rank: Rank) -> None:
    rank.relay.lose("its node is gone")
    assert await rank.child.exited == ORPHANED_EXIT_CODE
    assert rank.child.exit_summary().endswith("its node is gone")
    assert rank.destroyed == 1
    await rank.handle.actor.signal(signal.SIGKILL, False)


@pytest.mark.parametrize("rank", [0.01], indirect=True)
async def test_a_node_that_does_not_answer_is_given_up(rank: Rank) -> None:
    rank.handle.is_cut_off = True
    rank.child.kill()
    assert await rank.child.exited == ORPHANED_EXIT_CODE
    assert "its node did not answer for 0.01 s after the kill" in rank.child.exit_summary()
    rank.handle.is_cut_off = False
    await rank.handle.actor.signal(signal.SIGKILL, False)
