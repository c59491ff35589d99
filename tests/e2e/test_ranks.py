"""Three ranks of a real, tiny model: the loss of any one is the loss of all, and others take their places."""

import asyncio
import os
from array import array
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import psutil
import pytest
import zmq

from pyllm._rust import Scheduler
from pyllm.config.option_reading import engine_config
from pyllm.config.process_config import CoreConfig
from pyllm.core.executors.local_workers import SpawnedWorkers
from pyllm.core.executors.multiprocess import ProcessExecutor
from pyllm.errors import StartError, WorkerDeadError
from pyllm.launch.resolve import resolve_config
from pyllm.wire.messages import Sampling
from tests.e2e.titles import find
from tests.tiny_model import write_tiny_model

RANKS, NUM_BLOCKS = 3, 32
PROMPT = array("i", range(40)).tobytes()


@pytest.fixture
async def executor(tmp_path: Path) -> AsyncIterator[ProcessExecutor]:
    model = write_tiny_model(tmp_path / "tiny")
    options = {"model": model, "device": "cpu", "tensor_parallel_size": RANKS, "max_num_seqs": 8, "warm_spares": False}
    engine, checkpoint = resolve_config(engine_config(options))
    folder = tmp_path / "sockets"
    folder.mkdir()
    config = CoreConfig(
        engine=engine,
        checkpoint=checkpoint,
        bind="",
        socket_folder=str(folder),
        ready_timeout=60.0,
        shutdown_timeout=0.0,
    )
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    executor = ProcessExecutor(config, context, SpawnedWorkers(config))
    yield executor
    await executor.close()
    context.destroy(0)
    assert sorted(os.listdir(folder)) == [f"lock-0-{rank}" for rank in range(RANKS)]


class Steps:
    """The steps of one greedy request, planned as a core would."""

    def __init__(self, executor: ProcessExecutor) -> None:
        self._executor = executor
        self._scheduler = Scheduler(
            block_size=16,
            num_blocks=NUM_BLOCKS,
            max_num_seqs=8,
            max_num_batched_tokens=64,
            max_model_len=512,
            vocab_size=290,
            enable_prefix_caching=False,
        )
        sampling = msgspec.msgpack.encode(Sampling(temperature=0.0))
        self._scheduler.add(0, 1, PROMPT, seed=0, max_tokens=100, sampling=sampling)

    async def run(self, number: int, killed: psutil.Process | None = None) -> list[int]:
        """The tokens of the next steps; in the midst of the first one, `killed` is."""
        tokens: list[int] = []
        for _ in range(number):
            plan = self._scheduler.schedule(0.0)
            assert plan is not None
            if killed is not None:
                killed.suspend()  # Else the step might end before the kill.
            answer = self._executor.submit(plan)
            if killed is not None:
                killed.kill()
            sampled = await answer
            self._scheduler.commit(plan.step, sampled.starts, sampled.tokens)
            tokens += array("i", sampled.tokens)
        return tokens


def rank(number: int) -> psutil.Process | None:
    """The process of a rank that has its configuration."""
    found = find(os.getpid(), f"pyllm::worker-0-{number}", generations=2)
    return found[0] if found else None


def pids() -> list[int]:
    """The processes of all ranks."""
    return [process.pid for number in range(RANKS) if (process := rank(number))]


async def restart_and_kill(executor: ProcessExecutor, number: int) -> None:
    for _ in range(5):  # On a busy machine it may be killed after it has joined.
        killing = asyncio.create_task(kill_when_it_joins(number, pids()))
        try:
            await executor.restart()
        finally:
            await killing


async def kill_when_it_joins(number: int, before: list[int]) -> None:
    while (process := rank(number)) is None or process.pid in before:
        await asyncio.sleep(0.01)
    process.kill()


@pytest.mark.full
async def test_three_ranks_survive_the_loss_of_any(executor: ProcessExecutor) -> None:
    await executor.start()
    await executor.collective("allocate", NUM_BLOCKS, 0)
    expected = await Steps(executor).run(12)
    assert len(expected) == 12
    num_ports = len(listening())
    steps = Steps(executor)
    assert await steps.run(4) == expected[:4]
    before = pids()
    with pytest.raises(WorkerDeadError, match="worker 1 of core 0 was killed by SIGKILL while") as caught:
        await steps.run(1, killed=rank(1))
    assert caught.value.cause == "killed"
    # Another one is lost while all of them look for one another.
    with pytest.raises(StartError, match="worker 2 of core 0 was killed by SIGKILL while"):
        await restart_and_kill(executor, 2)
    assert not any(psutil.pid_exists(pid) for pid in before)
    await executor.restart()
    await executor.collective("allocate", NUM_BLOCKS, 0)
    steps = Steps(executor)
    assert await steps.run(12) == expected
    assert len(listening()) == num_ports
    with pytest.raises(WorkerDeadError, match="worker 0 of core 0 was killed by SIGKILL while"):
        await steps.run(1, killed=rank(0))


def listening() -> list[int]:
    """Ports of our workers."""
    workers = [process for number in range(RANKS) if (process := rank(number))]
    return [
        connection.laddr.port
        for process in workers
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
