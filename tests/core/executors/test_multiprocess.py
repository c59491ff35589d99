"""The process executor over real processes that hold no model."""

import asyncio
import contextlib
import os
import signal
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import psutil
import pytest
import zmq

from benchmarks.engine import empty_worker
from benchmarks.engine.step import ENTRY, core_config
from pyllm.core.executors.multiprocess import ProcessExecutor
from pyllm.errors import EngineDeadError, StartError, WorkerDeadError
from pyllm.launch import topology
from pyllm.supervision.child_process import TICK
from pyllm.supervision.parent_link import OUT_OF_MEMORY_EXIT_CODE
from pyllm.supervision.supervised_process import SupervisedProcess
from pyllm.wire import ipc
from pyllm.wire.heartbeat import SILENCE
from pyllm.wire.messages import Restarts
from tests import waiting
from tests.core.executors.planned import plans

ENTRIES = "tests.core.executors.entries"


class Started(NamedTuple):
    """An executor that is ready, the folder of its sockets, and the process that its workers are forked from.

    `restarts` has those that it has told of, each time.
    """

    executor: ProcessExecutor
    folder: Path
    fork_server: SupervisedProcess
    restarts: list[tuple[Restarts, ...]]

    @property
    def workers(self) -> list[psutil.Process]:
        """The workers that are there, in no order."""
        return workers_of(self.fork_server)


Make = Callable[..., Awaitable[Started]]
until = partial(waiting.until, pause=0.01)  # Processes are looked at, through files.


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Make]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    made: list[Started] = []
    sockets = tmp_path / "sockets"
    sockets.mkdir()

    async def start(entry: str = ENTRY, ranks: int = 1, ready_timeout: float = 60.0) -> Started:
        config = msgspec.structs.replace(core_config(str(tmp_path), ranks), socket_folder=str(sockets))
        fork_server = topology.supervised_fork_server(config, entry)
        config = msgspec.structs.replace(config, ready_timeout=ready_timeout)
        restarts: list[tuple[Restarts, ...]] = []
        executor = ProcessExecutor(config, context, on_restarts=restarts.append)
        made.append(Started(executor, sockets, fork_server, restarts))
        await fork_server.start(lambda reason: None)
        await made[-1].executor.start()
        return made[-1]

    yield start
    for executor, _, fork_server, _ in made:
        await executor.close()
        await executor.close()  # twice is no error
        await until(lambda fork_server=fork_server: not workers_of(fork_server))
        await fork_server.stop(10.0)
    context.destroy(0)
    assert os.listdir(sockets) == []


# Workers are followed and signalled alike where a sandbox refuses pidfds.
both_ways = pytest.mark.parametrize("entry", [ENTRY, f"{ENTRIES}:empty_without_pidfd"])


@pytest.fixture(params=[ENTRY, f"{ENTRIES}:empty_without_pidfd"])
async def two(start: Make, request: pytest.FixtureRequest) -> Started:
    return await start(request.param, ranks=2)


@pytest.fixture
def executor(two: Started) -> ProcessExecutor:
    return two.executor


def workers_of(fork_server: SupervisedProcess) -> list[psutil.Process]:
    """All that it has forked and that has not been reaped."""
    assert fork_server.process is not None
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(fork_server.process.pid).children()
    return []


def ranks(started: Started) -> dict[str, psutil.Process]:
    """The workers by their titles' last letters."""
    return {worker.cmdline()[0][-1]: worker for worker in started.workers}


async def tokens(executor: ProcessExecutor, number: int = 2) -> list[int]:
    """What some steps sample."""
    sampled = await asyncio.gather(*[executor.submit(plan) for plan in plans(number)])
    return [array("i", answer.tokens)[0] for answer in sampled]


async def test_steps_in_flight_are_answered_in_order(executor: ProcessExecutor) -> None:
    futures = [executor.submit(plan) for plan in plans(5)]
    sampled = await asyncio.gather(*futures)
    assert [answer.step for answer in sampled] == [0, 1, 2, 3, 4]
    assert all(array("i", answer.tokens).tolist() == [empty_worker.TOKEN] for answer in sampled)


async def test_every_rank_answers_a_collective_in_rank_order(two: Started) -> None:
    assert await two.executor.collective("num_blocks") == [32_768, 32_768]
    assert ranks(two).keys() == {"0", "1"}


async def test_refused_collective_is_an_error(executor: ProcessExecutor) -> None:
    with pytest.raises(EngineDeadError, match="refused"):
        await executor.collective("unknown")


@pytest.mark.parametrize("rank", [0, 1])
async def test_killed_rank_fails_what_is_in_flight_and_what_comes(two: Started, rank: int) -> None:
    executor, there = two.executor, ranks(two)
    there["0"].send_signal(signal.SIGSTOP)  # so that the step is still in flight; `close` kills it as it is
    first, second = plans(2)
    future = executor.submit(first)
    there[str(rank)].kill()
    with pytest.raises(EngineDeadError, match=rf"worker {rank} of core 0 was killed by SIGKILL"):
        await future
    with pytest.raises(EngineDeadError, match="SIGKILL"):
        await executor.submit(second)
    with pytest.raises(EngineDeadError, match="SIGKILL"):
        await executor.collective("num_blocks")


@both_ways
async def test_restart_gives_other_workers_that_know_nothing_of_the_old_ones(start: Make, entry: str) -> None:
    started = await start(entry, ranks=2)
    executor, folder, *_ = started
    old = {worker.pid for worker in started.workers}
    sockets = {path.name for path in folder.iterdir()}
    assert len(sockets) == 2
    left = folder / "worker-0-0-7"  # by a core before this one, which was killed
    left.touch()
    stopped, killed = started.workers
    stopped.send_signal(signal.SIGSTOP)
    futures = [executor.submit(plan) for plan in plans(3)]
    call = asyncio.ensure_future(executor.collective("num_blocks"))
    await asyncio.sleep(0)
    killed.kill()
    outcomes = await asyncio.gather(*futures, call, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {WorkerDeadError}
    assert executor.death is outcomes[0]
    await executor.restart()
    assert executor.death is None
    assert not old & {worker.pid for worker in started.workers}
    assert not sockets & {path.name for path in folder.iterdir()}
    assert not left.exists()
    assert await tokens(executor) == [empty_worker.TOKEN] * 2
    assert await executor.collective("num_blocks") == [32_768, 32_768]
    (restarts,) = started.restarts
    assert [each.num_restarts for each in restarts] == [1, 1]
    assert {each.pid for each in restarts} == {worker.pid for worker in started.workers}
    assert all("was killed by SIGKILL" in each.reason for each in restarts)


async def test_restart_of_workers_that_live_fails_what_is_in_flight(start: Make) -> None:
    started = await start()
    executor = started.executor
    started.workers[0].send_signal(signal.SIGSTOP)
    future = executor.submit(plans(1)[0])
    await executor.restart()
    with pytest.raises(WorkerDeadError, match="the workers were ended"):
        await future
    assert await tokens(executor) == [empty_worker.TOKEN] * 2


async def test_nothing_is_at_an_old_address(start: Make) -> None:
    """A late frame for the executor before the restart has nowhere to go."""
    executor, folder, *_ = await start()
    (old,) = folder.iterdir()
    await executor.restart()
    with zmq.Context() as context, ipc.bind(context, zmq.DEALER, f"ipc://{old}") as socket:
        assert await tokens(executor) == [empty_worker.TOKEN] * 2
        with pytest.raises(zmq.Again):
            socket.send(b"late", zmq.NOBLOCK)
    old.unlink()


@both_ways
async def test_no_descriptor_is_left_after_restarts(start: Make, entry: str) -> None:
    started = await start(entry)
    fork_server = workers_of(started.fork_server)[0].parent()
    assert fork_server is not None
    ours, theirs = len(os.listdir("/proc/self/fd")), fork_server.num_fds()
    for _ in range(8):
        await started.executor.restart()
    # ZeroMQ's thread closes some a little later; one a restart would be 8 more.
    await until(lambda: len(os.listdir("/proc/self/fd")) < ours + 4 and fork_server.num_fds() == theirs)


@both_ways
async def test_kill_ends_what_does_not_go_on(start: Make, entry: str) -> None:
    started = await start(entry, ranks=2)
    executor = started.executor
    for worker in started.workers:
        worker.send_signal(signal.SIGSTOP)
    future = executor.submit(plans(1)[0])
    executor.kill("stalled")
    with pytest.raises(WorkerDeadError, match="ended as stalled: worker 0 of core 0 was ready, worker 1") as caught:
        await future
    assert caught.value.cause == "stalled"
    await executor.restart()
    assert await tokens(executor) == [empty_worker.TOKEN] * 2


@pytest.mark.parametrize("entry", ["obedient", "obedient_without_pidfd"])
@pytest.mark.parametrize(
    ("method", "number", "cause"),
    [
        ("signal", signal.SIGKILL, "killed"),
        ("signal", signal.SIGTERM, "killed"),
        ("signal", signal.SIGSEGV, "crashed"),
        ("exit", 0, "crashed"),
        ("exit", 1, "crashed"),
        ("exit", OUT_OF_MEMORY_EXIT_CODE, "out_of_memory"),
    ],
)
async def test_cause_of_a_death_and_last_words(start: Make, method: str, number: int, cause: str, entry: str) -> None:
    executor, *_ = await start(f"{ENTRIES}:{entry}")
    with pytest.raises(WorkerDeadError) as caught:
        await executor.collective(method, int(number))
    assert caught.value.cause == cause
    assert caught.value.log.startswith(b"its last words")


async def test_a_call_that_does_not_end_ends_the_workers(start: Make) -> None:
    """They beat meanwhile."""
    executor, *_ = await start(f"{ENTRIES}:obedient", ready_timeout=1.0)
    with pytest.raises(WorkerDeadError, match="the workers were ended as stalled") as caught:
        await executor.collective("hang")
    assert executor.death is caught.value


async def test_a_worker_that_is_stopped_is_ended_as_silent(start: Make) -> None:
    started = await start()
    executor = started.executor
    started.workers[0].send_signal(signal.SIGSTOP)
    with pytest.raises(WorkerDeadError) as caught:
        await executor.submit(plans(1)[0])
    assert caught.value.cause == "silent"
    await executor.restart()
    assert await tokens(executor) == [empty_worker.TOKEN] * 2


async def test_a_worker_holds_no_descriptor_of_a_sibling(two: Started) -> None:
    """Who is connected to one of them is to see its end."""
    first, second = two.workers
    fork_server = first.parent()
    assert fork_server is not None
    # Streams that all have of the test's process.
    inherited = {os.readlink(f"/proc/{fork_server.pid}/fd/{number}") for number in (1, 2)}
    assert descriptors(first) & descriptors(second) - inherited == set()
    assert descriptors(first) & descriptors(fork_server) - inherited == set()


def descriptors(process: psutil.Process) -> set[str]:
    """Which sockets and pipes a process holds."""
    names = [os.readlink(path) for path in Path(f"/proc/{process.pid}/fd").iterdir()]
    return {name for name in names if name.startswith(("socket:", "pipe:"))}


async def test_the_death_of_the_fork_server_is_that_of_its_workers(two: Started) -> None:
    assert two.fork_server.process is not None
    before, old = two.fork_server.process, two.workers
    future = two.executor.submit(plans(1)[0])
    assert await future
    before.signal(signal.SIGKILL)
    await until(lambda: two.executor.death is not None)
    assert two.executor.death is not None
    assert two.executor.death.cause == "orphaned"
    assert "the fork server has ended" in str(two.executor.death)
    await two.executor.restart()  # It waits for the next fork server.
    assert two.fork_server.process is not before
    assert await tokens(two.executor) == [empty_worker.TOKEN] * 2
    await until(lambda: not any(worker.is_running() for worker in old))


async def test_a_fork_server_that_stands_still_holds_nobody_up(two: Started) -> None:
    """Steps go on meanwhile; who wants a worker waits for the next fork server."""
    assert two.fork_server.process is not None
    before = two.fork_server.process
    before.signal(signal.SIGSTOP)
    assert await tokens(two.executor) == [empty_worker.TOKEN] * 2
    restarting = asyncio.create_task(two.executor.restart())
    turns = 0
    while not restarting.done():
        turns += 1
        await asyncio.sleep(0.01)
    await restarting
    assert before.silent
    # The event loop was free: ours was the turn between any two looks at the fork server.
    assert turns >= SILENCE / TICK
    assert await tokens(two.executor) == [empty_worker.TOKEN] * 2


async def test_a_fork_server_that_ends_while_a_worker_starts_is_waited_for(start: Make) -> None:
    started = await start()
    executor, _, fork_server, _ = started
    assert fork_server.process is not None
    fork_server.process.signal(signal.SIGSTOP)
    restarting = asyncio.create_task(executor.restart())
    await until(lambda: executor.death is not None)
    fork_server.process.signal(signal.SIGKILL)
    await restarting
    assert await tokens(executor) == [empty_worker.TOKEN] * 2


async def test_without_a_fork_server_a_start_fails_in_time(start: Make) -> None:
    started = await start(ready_timeout=1.0)
    await started.fork_server.stop(10.0)
    with pytest.raises(StartError, match=r"worker 0 of core 0 was not forked within 1 s: .*refused"):
        await started.executor.restart()


async def test_workers_end_with_the_connection_of_their_core_though_they_stand_still(start: Make) -> None:
    started = await start(ranks=2)
    for worker in started.workers:
        worker.send_signal(signal.SIGSTOP)
    old = started.workers
    started.executor._source.close()
    await until(lambda: not any(worker.is_running() for worker in old))


@both_ways
async def test_a_start_that_is_given_up_leaves_no_worker(start: Make, entry: str) -> None:
    started = await start(entry)
    assert started.fork_server.process is not None
    # Killed here, and reaped, as without pidfds a fork server that stands still passes no signal on.
    started.workers[0].kill()
    await until(lambda: started.executor.death is not None)
    started.fork_server.process.signal(signal.SIGSTOP)
    restarting = asyncio.create_task(started.executor.restart())
    await until(lambda: started.executor._source._fork_server._pending)
    restarting.cancel()
    await asyncio.wait({restarting})
    started.fork_server.process.signal(signal.SIGCONT)
    await until(lambda: not started.executor._source._fork_server._pending)
    await until(lambda: not started.workers)


async def test_an_error_in_what_a_worker_runs_is_told(start: Make) -> None:
    with pytest.raises(StartError, match="worker 0 of core 0 exited with code 1 while starting"):
        await start(f"{ENTRIES}:raising")


async def test_rank_that_never_becomes_ready_is_named_and_the_others_are_ended(start: Make) -> None:
    with pytest.raises(StartError, match="worker 1 of core 0 exited with code 9 while starting"):
        await start(f"{ENTRIES}:dying_at_once", ranks=2)


async def test_restart_that_fails_may_be_tried_again(start: Make) -> None:
    started = await start(f"{ENTRIES}:broken_where_told", ranks=2)
    executor, folder, *_ = started
    (folder / "broken").touch()
    with pytest.raises(StartError, match="worker 1 of core 0 exited with code 9 while starting"):
        await executor.restart()
    await until(lambda: not started.workers)
    assert executor.death is not None
    with pytest.raises(WorkerDeadError, match="exited with code 9"):
        await executor.submit(plans(1)[0])
    (folder / "broken").unlink()
    await executor.restart()
    assert await tokens(executor) == [empty_worker.TOKEN] * 2
