"""The process executor over real processes that hold no model."""

import asyncio
import contextlib
import errno
import os
import signal
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import psutil
import pytest
import zmq

from benchmarks.engine import empty_worker
from benchmarks.engine.step import ENTRY, core_config
from pyllm.core.executors.local_workers import ForkedWorkers, SpawnedWorkers
from pyllm.core.executors.multiprocess import ProcessExecutor
from pyllm.errors import EngineDeadError, StartError, WorkerDeadError
from pyllm.launch import topology
from pyllm.supervision import child_process
from pyllm.supervision.child_process import TICK, ChildProcess
from pyllm.supervision.parent_link import OUT_OF_MEMORY_EXIT_CODE
from pyllm.supervision.supervised_process import SupervisedProcess
from pyllm.wire import ipc
from pyllm.wire.heartbeat import SILENCE
from pyllm.wire.messages import Restarts
from tests import waiting
from tests.core.executors.planned import plans

ENTRIES = "tests.core.executors.entries"
SPAWNED = "tests.core.executors.spawned"


class Started(NamedTuple):
    """An executor that is ready, the folder of its sockets, and what its workers are forked from, or were spawned as.

    `restarts` has those that it has told of, each time.
    """

    executor: ProcessExecutor
    folder: Path
    restarts: list[tuple[Restarts, ...]]
    fork_server: SupervisedProcess | None
    spawned: list[ChildProcess]

    @property
    def forking(self) -> ChildProcess:
        """The fork server's process."""
        assert self.fork_server is not None
        assert self.fork_server.process is not None
        return self.fork_server.process

    @property
    def workers(self) -> list[psutil.Process]:
        """The workers that are there and have not been reaped, in no order."""
        if self.fork_server is None:
            return [psutil.Process(child.pid) for child in self.spawned if not child.exited.done()]
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.forking.pid).children()
        return []


Make = Callable[..., Awaitable[Started]]
Way = dict[str, Any]
until = partial(waiting.until, pause=0.01)  # Processes are looked at, through files.


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Make]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    made: list[Started] = []
    sockets = tmp_path / "sockets"
    sockets.mkdir()

    async def start(
        entry: str = ENTRY, ranks: int = 1, ready_timeout: float = 60.0, forks: bool = True, warm_spares: bool = False
    ) -> Started:
        config = msgspec.structs.replace(core_config(str(tmp_path), ranks), socket_folder=str(sockets))
        recovery = msgspec.structs.replace(config.engine.recovery, warm_spares=warm_spares)
        engine = msgspec.structs.replace(config.engine, recovery=recovery)
        fork_server = topology.supervised_fork_server(config, entry) if forks else None
        config = msgspec.structs.replace(config, engine=engine, ready_timeout=ready_timeout)
        restarts: list[tuple[Restarts, ...]] = []
        spawned: list[ChildProcess] = []

        def spawn(name: str, role: str, *files: int) -> ChildProcess:
            assert role == "worker"
            spawned.append(child_process.spawn(name, entry, *files, module=SPAWNED))
            return spawned[-1]

        source = ForkedWorkers(config) if forks else SpawnedWorkers(config, spawn=spawn)
        executor = ProcessExecutor(config, context, source, on_restarts=restarts.append)
        made.append(Started(executor, sockets, restarts, fork_server, spawned))
        if fork_server is not None:
            await fork_server.start(lambda reason: None)
        await made[-1].executor.start()
        return made[-1]

    yield start
    for started in made:
        await started.executor.close()
        await started.executor.close()  # twice is no error
        await until(lambda started=started: not started.workers)
        if started.fork_server is not None:
            await started.fork_server.stop(10.0)
    context.destroy(0)
    assert os.listdir(sockets) == []


# Workers are followed and signalled alike where a sandbox refuses pidfds.
FORKED = pytest.param({}, id="forked")
WITHOUT_PIDFD = pytest.param({"entry": f"{ENTRIES}:empty_without_pidfd"}, id="without_pidfd", marks=pytest.mark.full)
WAYS = [FORKED, WITHOUT_PIDFD, pytest.param({"forks": False}, id="spawned")]
every_way = pytest.mark.parametrize("way", WAYS)


@pytest.fixture(params=WAYS)
async def two(start: Make, request: pytest.FixtureRequest) -> Started:
    return await start(ranks=2, **request.param)


@pytest.fixture(params=[FORKED, WITHOUT_PIDFD])
async def two_forks(start: Make, request: pytest.FixtureRequest) -> Started:
    return await start(ranks=2, **request.param)


@pytest.fixture
def executor(two: Started) -> ProcessExecutor:
    return two.executor


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


@every_way
async def test_restart_gives_other_workers_that_know_nothing_of_the_old_ones(start: Make, way: Way) -> None:
    started = await start(ranks=2, **way)
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


@every_way
async def test_restart_of_workers_that_live_fails_what_is_in_flight(start: Make, way: Way) -> None:
    started = await start(**way)
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


@every_way
async def test_no_descriptor_is_left_after_restarts(start: Make, way: Way) -> None:
    started = await start(**way)

    def forked_from() -> int:
        """The descriptors of the fork server, if there is one."""
        return 0 if started.fork_server is None else psutil.Process(started.forking.pid).num_fds()

    ours, theirs = len(os.listdir("/proc/self/fd")), forked_from()
    for _ in range(8):
        await started.executor.restart()
    # ZeroMQ's thread closes some a little later; one a restart would be 8 more.
    await until(lambda: len(os.listdir("/proc/self/fd")) < ours + 4 and forked_from() == theirs)


@every_way
async def test_kill_ends_what_does_not_go_on(start: Make, way: Way) -> None:
    started = await start(ranks=2, **way)
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


@pytest.mark.parametrize(
    ("entry", "forks"), [("obedient", True), ("obedient_without_pidfd", True), ("obedient", False)]
)
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
async def test_cause_of_a_death_and_last_words(
    start: Make, method: str, number: int, cause: str, entry: str, forks: bool
) -> None:
    executor, *_ = await start(f"{ENTRIES}:{entry}", forks=forks)
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


@every_way
async def test_a_worker_that_is_stopped_is_ended_as_silent(start: Make, way: Way) -> None:
    started = await start(**way)
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
    if two.fork_server is not None:  # A core has the other ends of its children's pipes.
        assert descriptors(first) & descriptors(fork_server) - inherited == set()


def descriptors(process: psutil.Process) -> set[str]:
    """Which sockets and pipes a process holds."""
    names = [os.readlink(path) for path in Path(f"/proc/{process.pid}/fd").iterdir()]
    return {name for name in names if name.startswith(("socket:", "pipe:"))}


async def test_the_death_of_the_fork_server_is_that_of_its_workers(two_forks: Started) -> None:
    two = two_forks
    before, old = two.forking, two.workers
    future = two.executor.submit(plans(1)[0])
    assert await future
    before.signal(signal.SIGKILL)
    await until(lambda: two.executor.death is not None)
    assert two.executor.death is not None
    assert two.executor.death.cause == "orphaned"
    assert "the fork server has ended" in str(two.executor.death)
    await two.executor.restart()  # It waits for the next fork server.
    assert two.forking is not before
    assert await tokens(two.executor) == [empty_worker.TOKEN] * 2
    await until(lambda: not any(worker.is_running() for worker in old))


async def test_a_fork_server_that_stands_still_holds_nobody_up(two_forks: Started) -> None:
    """Steps go on meanwhile; who wants a worker waits for the next fork server."""
    two = two_forks
    before = two.forking
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
    executor = started.executor
    started.forking.signal(signal.SIGSTOP)
    restarting = asyncio.create_task(executor.restart())
    await until(lambda: executor.death is not None)
    started.forking.signal(signal.SIGKILL)
    await restarting
    assert await tokens(executor) == [empty_worker.TOKEN] * 2


async def test_without_a_fork_server_a_start_fails_in_time(start: Make) -> None:
    started = await start(ready_timeout=1.0)
    assert started.fork_server is not None
    await started.fork_server.stop(10.0)
    with pytest.raises(StartError, match=r"worker 0 of core 0 was not forked within 1 s: .*refused"):
        await started.executor.restart()


async def test_forks_end_with_the_connection_of_their_core_though_they_stand_still(start: Make) -> None:
    started = await start(ranks=2)
    for worker in started.workers:
        worker.send_signal(signal.SIGSTOP)
    old = started.workers
    await started.executor._source.close()
    await until(lambda: not any(worker.is_running() for worker in old))


@pytest.mark.parametrize("way", [FORKED, WITHOUT_PIDFD])
async def test_a_start_that_is_given_up_leaves_no_worker(start: Make, way: Way) -> None:
    started = await start(**way)
    # Killed here, and reaped, as without pidfds a fork server that stands still passes no signal on.
    started.workers[0].kill()
    await until(lambda: started.executor.death is not None)
    started.forking.signal(signal.SIGSTOP)
    restarting = asyncio.create_task(started.executor.restart())
    await until(lambda: started.executor._source._fork_server._pending)
    restarting.cancel()
    await asyncio.wait({restarting})
    started.forking.signal(signal.SIGCONT)
    await until(lambda: not started.executor._source._fork_server._pending)
    await until(lambda: not started.workers)


both_sources = pytest.mark.parametrize("forks", [True, False], ids=["forked", "spawned"])


@both_sources
async def test_an_error_in_what_a_worker_runs_is_told(start: Make, forks: bool) -> None:
    with pytest.raises(StartError, match="worker 0 of core 0 exited with code 1 while starting"):
        await start(f"{ENTRIES}:raising", forks=forks)


@both_sources
async def test_rank_that_never_becomes_ready_is_named_and_the_others_are_ended(start: Make, forks: bool) -> None:
    with pytest.raises(StartError, match="worker 1 of core 0 exited with code 9 while starting"):
        await start(f"{ENTRIES}:dying_at_once", ranks=2, forks=forks)


@both_sources
async def test_restart_that_fails_may_be_tried_again(start: Make, forks: bool) -> None:
    started = await start(f"{ENTRIES}:broken_where_told", ranks=2, forks=forks)
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


async def test_a_spare_takes_the_place_of_a_worker_that_ends(start: Make) -> None:
    started = await start(forks=False, warm_spares=True)
    first, *_ = started.spawned
    await until(lambda: len(started.spawned) == 2)
    spare = started.spawned[1]
    psutil.Process(first.pid).kill()
    await until(lambda: started.executor.death is not None)
    await started.executor.restart()
    assert [process.pid for process in started.executor._ranks] == [spare.pid]
    assert await tokens(started.executor) == [empty_worker.TOKEN] * 2
    await until(lambda: len(started.spawned) == 3)  # the next spare, which ends with the executor


async def test_a_worker_that_cannot_be_started_is_told(start: Make, tmp_path: Path) -> None:
    def refuse(name: str, role: str, *files: int) -> ChildProcess:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    with zmq.Context() as context:
        config = core_config(str(tmp_path))
        executor = ProcessExecutor(config, context, SpawnedWorkers(config, spawn=refuse))
        with pytest.raises(StartError, match=r"worker 0 of core 0 cannot be started: .*unavailable; raise the limits"):
            await executor.start()


@pytest.mark.parametrize("dead", [False, True], ids=["alive", "dead"])
async def test_workers_that_began_before_the_event_loop_are_taken_unless_they_have_ended(
    tmp_path: Path, dead: bool
) -> None:
    spawned: list[ChildProcess] = []

    def spawn(name: str, role: str, *files: int) -> ChildProcess:
        spawned.append(child_process.spawn(name, ENTRY, *files, module=SPAWNED))
        return spawned[-1]

    config = core_config(str(tmp_path), 2)
    source = SpawnedWorkers(config, spawn=spawn)
    source.begin()
    first = spawned[:]
    if dead:
        killed = psutil.Process(first[0].pid)
        killed.kill()
        await until(lambda: killed.status() == psutil.STATUS_ZOMBIE)
    with zmq.Context() as context:
        executor = ProcessExecutor(config, context, source)
        await executor.start()
        taken = [process.pid for process in executor._ranks]
        assert [process.pid in taken for process in first] == [not dead, True]
        await executor.restart()
        assert len({*taken, *(process.pid for process in executor._ranks)}) == 4
        await executor.close()
