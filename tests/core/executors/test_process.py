"""The process executor over real processes that hold no model."""

import asyncio
import signal
from array import array
from collections.abc import AsyncIterator
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import psutil
import pytest
import zmq

from benchmarks import empty_worker
from benchmarks.step import core_config
from pyllm.child import await_configuration
from pyllm.core.executors.process import ProcessExecutor
from pyllm.errors import EngineDeadError, StartError
from pyllm.process_config import WorkerConfig
from tests.core.executors.planned import plans


@pytest.fixture
async def executor(tmp_path: Path) -> AsyncIterator[ProcessExecutor]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    made = ProcessExecutor(core_config(str(tmp_path), ranks=2), empty_worker.main, context)
    await made.start()
    yield made
    await made.close()
    await made.close()  # twice is no error
    context.destroy(0)


def workers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if child.cmdline()[0].startswith("pyllm::worker-0-")]


async def test_steps_in_flight_are_answered_in_order(executor: ProcessExecutor) -> None:
    futures = [executor.submit(plan) for plan in plans(5)]
    sampled = await asyncio.gather(*futures)
    assert [answer.step for answer in sampled] == [0, 1, 2, 3, 4]
    assert all(array("i", answer.tokens).tolist() == [empty_worker.TOKEN] for answer in sampled)


async def test_every_rank_answers_a_collective_in_rank_order(executor: ProcessExecutor) -> None:
    assert await executor.collective("num_blocks") == [32_768, 32_768]
    assert len(workers()) == 2


async def test_refused_collective_is_an_error(executor: ProcessExecutor) -> None:
    with pytest.raises(EngineDeadError, match="refused"):
        await executor.collective("unknown")


@pytest.mark.parametrize("rank", [0, 1])
async def test_killed_rank_fails_what_is_in_flight_and_what_comes(executor: ProcessExecutor, rank: int) -> None:
    ranks = {worker.cmdline()[0][-1]: worker for worker in workers()}
    ranks["0"].send_signal(signal.SIGSTOP)  # so that the step is still in flight; `close` kills it as it is
    first, second = plans(2)
    future = executor.submit(first)
    ranks[str(rank)].kill()
    with pytest.raises(EngineDeadError, match=rf"worker {rank} of core 0 was killed by SIGKILL"):
        await future
    with pytest.raises(EngineDeadError, match="SIGKILL"):
        await executor.submit(second)
    with pytest.raises(EngineDeadError, match="SIGKILL"):
        await executor.collective("num_blocks")


def die_on_start(connection: Connection, stderr: Connection) -> None:
    raise SystemExit(9 if msgspec.msgpack.decode(await_configuration(connection), type=WorkerConfig).rank == 1 else 0)


async def test_rank_that_never_becomes_ready_is_named_and_the_others_are_ended(tmp_path: Path) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    executor = ProcessExecutor(core_config(str(tmp_path), ranks=2), die_on_start, context)
    with pytest.raises(StartError, match="exited with code"):
        await executor.start()
    await executor.close()
    assert workers() == []
    context.destroy(0)
