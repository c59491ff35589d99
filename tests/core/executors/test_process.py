"""The process executor over real processes that hold no model."""

import asyncio
import os
import signal
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import msgspec
import psutil
import pytest
import zmq

from benchmarks import empty_worker
from benchmarks.step import core_config
from pyllm import ipc
from pyllm.child import OUT_OF_MEMORY_EXIT_CODE, SPARE_TITLE, attach, await_configuration
from pyllm.config import RecoveryConfig
from pyllm.core.executors.process import ProcessExecutor
from pyllm.core.executors.rank_process import WorkerEntry
from pyllm.errors import EngineDeadError, StartError, WorkerDeadError
from pyllm.messages import Control
from pyllm.process_config import WorkerConfig
from pyllm.spares import MAX_REPLACEMENTS
from tests.core.executors.planned import plans


class Started(NamedTuple):
    """An executor that is ready, and the folder of its sockets."""

    executor: ProcessExecutor
    folder: Path


Make = Callable[..., Awaitable[Started]]


# Processes that tests of other modules have left to this one.
others: set[int] = set()


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Make]:
    others.update(pids())
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    made: list[ProcessExecutor] = []

    async def start(entry: WorkerEntry = empty_worker.main, ranks: int = 1, warm_spares: bool = False) -> Started:
        config = core_config(str(tmp_path), ranks)
        engine = msgspec.structs.replace(config.engine, recovery=RecoveryConfig(warm_spares=warm_spares))
        config = msgspec.structs.replace(config, engine=engine)
        made.append(ProcessExecutor(config, entry, context, spare_delay=0.0))
        await made[-1].start()
        return Started(made[-1], tmp_path)

    yield start
    for executor in made:
        await executor.close()
        await executor.close()  # twice is no error
    context.destroy(0)
    assert pids() == []
    assert os.listdir(tmp_path) == []


@pytest.fixture
async def executor(start: Make) -> ProcessExecutor:
    return (await start(ranks=2)).executor


def pids() -> list[int]:
    """Those that the test has started, but for multiprocessing's own."""
    tracker = resource_tracker._resource_tracker._pid
    found = [pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()]
    return [int(pid) for pid in found if int(pid) not in {tracker, *others}]


def children(title: str) -> list[psutil.Process]:
    """Our processes, by the beginning of their titles."""
    return [psutil.Process(pid) for pid in pids() if Path(f"/proc/{pid}/cmdline").read_text().startswith(title)]


def workers() -> list[psutil.Process]:
    return children("pyllm::worker-0-")


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


async def tokens(executor: ProcessExecutor, number: int = 2) -> list[int]:
    """What some steps sample."""
    sampled = await asyncio.gather(*[executor.submit(plan) for plan in plans(number)])
    return [array("i", answer.tokens)[0] for answer in sampled]


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


async def test_restart_gives_other_workers_that_know_nothing_of_the_old_ones(start: Make) -> None:
    executor, folder = await start(ranks=2)
    old = {worker.pid for worker in workers()}
    sockets = {path.name for path in folder.iterdir()}
    assert len(sockets) == 2
    left = folder / "worker-0-0-7"  # by a core before this one, which was killed
    left.touch()
    stopped = workers()[0]
    stopped.send_signal(signal.SIGSTOP)
    futures = [executor.submit(plan) for plan in plans(3)]
    call = asyncio.ensure_future(executor.collective("num_blocks"))
    await asyncio.sleep(0)
    workers()[1].kill()
    outcomes = await asyncio.gather(*futures, call, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {WorkerDeadError}
    assert executor.death is outcomes[0]
    await executor.restart()
    assert executor.death is None
    assert not old & {worker.pid for worker in workers()}
    assert not sockets & {path.name for path in folder.iterdir()}
    assert not left.exists()
    assert await tokens(executor) == [empty_worker.TOKEN] * 2
    assert await executor.collective("num_blocks") == [32_768, 32_768]


async def test_restart_of_workers_that_live_fails_what_is_in_flight(start: Make) -> None:
    executor, _ = await start()
    workers()[0].send_signal(signal.SIGSTOP)
    future = executor.submit(plans(1)[0])
    await executor.restart()
    with pytest.raises(WorkerDeadError, match="the workers were ended"):
        await future
    assert await tokens(executor) == [empty_worker.TOKEN] * 2


async def test_nothing_is_at_an_old_address(start: Make) -> None:
    """A late frame for the executor before the restart has nowhere to go."""
    executor, folder = await start()
    (old,) = folder.iterdir()
    await executor.restart()
    with zmq.Context() as context, ipc.bind(context, zmq.DEALER, f"ipc://{old}") as socket:
        assert await tokens(executor) == [empty_worker.TOKEN] * 2
        with pytest.raises(zmq.Again):
            socket.send(b"late", zmq.NOBLOCK)
    old.unlink()


async def test_no_descriptor_is_left_after_restarts(start: Make) -> None:
    executor, _ = await start(warm_spares=True)
    counts = []
    for _ in range(8):
        await until(lambda: len(pids()) == 2)
        counts.append(len(os.listdir("/proc/self/fd")))
        await executor.restart()
    # ZeroMQ's thread closes some a little later; one a restart would be 8 more.
    await until(lambda: len(pids()) == 2 and len(os.listdir("/proc/self/fd")) < counts[0] + 4)


async def test_kill_ends_what_does_not_go_on(start: Make) -> None:
    executor, _ = await start(ranks=2)
    for worker in workers():
        worker.send_signal(signal.SIGSTOP)
    future = executor.submit(plans(1)[0])
    executor.kill("stalled")
    with pytest.raises(WorkerDeadError, match="ended as stalled: worker 0 of core 0 was ready, worker 1") as caught:
        await future
    assert caught.value.cause == "stalled"
    await executor.restart()
    assert await tokens(executor) == [empty_worker.TOKEN] * 2


def obedient(connection: Connection, stderr: Connection) -> None:
    """Become ready, and end as the first `Control` says."""
    os.dup2(stderr.fileno(), 2)
    config = msgspec.msgpack.decode(await_configuration(connection), type=WorkerConfig)
    child = attach(connection, f"pyllm::worker-0-{config.rank}")
    socket = ipc.bind(zmq.Context(), zmq.DEALER, config.address)
    child.started()
    control = msgspec.msgpack.decode(socket.recv(), type=Control)
    os.write(2, b"its last words")
    if control.method == "exit":
        os._exit(*control.args)
    os.kill(os.getpid(), *control.args)


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
async def test_cause_of_a_death_and_last_words(start: Make, method: str, number: int, cause: str) -> None:
    executor, _ = await start(obedient)
    with pytest.raises(WorkerDeadError) as caught:
        await executor.collective(method, int(number))
    assert caught.value.cause == cause
    assert caught.value.log.startswith(b"its last words")


async def test_a_worker_that_is_stopped_is_ended_as_silent(start: Make) -> None:
    executor, _ = await start()
    workers()[0].send_signal(signal.SIGSTOP)
    with pytest.raises(WorkerDeadError) as caught:
        await executor.submit(plans(1)[0])
    assert caught.value.cause == "silent"
    await executor.restart()
    assert await tokens(executor) == [empty_worker.TOKEN] * 2


async def test_spares_stand_by_and_take_the_place_of_what_dies(start: Make) -> None:
    executor, _ = await start(ranks=2, warm_spares=True)
    await until(lambda: len(children(SPARE_TITLE)) == 2)
    spares = {spare.pid for spare in children(SPARE_TITLE)}
    workers()[0].kill()
    await until(lambda: executor.death is not None)
    await executor.restart()
    assert {worker.pid for worker in workers()} == spares
    assert await tokens(executor) == [empty_worker.TOKEN] * 2
    await until(lambda: len(children(SPARE_TITLE)) == 2)
    assert not spares & {spare.pid for spare in children(SPARE_TITLE)}


async def test_spare_that_dies_is_replaced_but_not_in_a_loop(start: Make) -> None:
    executor, _ = await start(warm_spares=True)
    seen = set()
    for _ in range(1 + MAX_REPLACEMENTS):
        await until(lambda: children(SPARE_TITLE))
        (spare,) = children(SPARE_TITLE)
        seen.add(spare.pid)
        spare.kill()
        await until(lambda pid=spare.pid: not psutil.pid_exists(pid))
    assert len(seen) == 1 + MAX_REPLACEMENTS
    assert executor.death is None
    assert await tokens(executor) == [empty_worker.TOKEN] * 2
    await executor.restart()
    await until(lambda: children(SPARE_TITLE))


async def test_spare_holds_no_descriptor_of_a_sibling(start: Make) -> None:
    await start(warm_spares=True)
    await until(lambda: children(SPARE_TITLE))
    (spare,), (worker,) = children(SPARE_TITLE), workers()
    # Streams of ours, and multiprocessing's pipe to a process that all of them tell of what is to be cleaned up.
    inherited = {os.readlink(f"/proc/self/fd/{number}") for number in (0, 1, resource_tracker.getfd())}
    assert descriptors(spare) & descriptors(worker) - inherited == set()
    assert len([name for name in descriptors(spare) if name.startswith("socket:")]) == 1  # to its core


def descriptors(process: psutil.Process) -> set[str]:
    """Which sockets and pipes a process holds."""
    names = [os.readlink(path) for path in Path(f"/proc/{process.pid}/fd").iterdir()]
    return {name for name in names if name.startswith(("socket:", "pipe:"))}


def die_on_start(connection: Connection, stderr: Connection) -> None:
    """Rank 1 fails; the others would wait for it."""
    if msgspec.msgpack.decode(await_configuration(connection), type=WorkerConfig).rank == 1:
        raise SystemExit(9)
    signal.pause()


async def test_rank_that_never_becomes_ready_is_named_and_the_others_are_ended(start: Make) -> None:
    with pytest.raises(StartError, match="worker 1 of core 0 exited with code 9 while starting"):
        await start(die_on_start, ranks=2)
    assert workers() == []


def broken_where_told(connection: Connection, stderr: Connection) -> None:
    """Serve, unless there is a file `broken` beside the socket."""
    stderr.close()
    config = msgspec.msgpack.decode(await_configuration(connection), type=WorkerConfig)
    if config.rank == 1 and (Path(config.address.removeprefix("ipc://")).parent / "broken").exists():
        raise SystemExit(9)
    empty_worker.serve(config, connection)


async def test_restart_that_fails_may_be_tried_again(start: Make) -> None:
    executor, folder = await start(broken_where_told, ranks=2)
    (folder / "broken").touch()
    with pytest.raises(StartError, match="worker 1 of core 0 exited with code 9 while starting"):
        await executor.restart()
    assert workers() == []
    assert executor.death is not None
    with pytest.raises(WorkerDeadError, match="exited with code 9"):
        await executor.submit(plans(1)[0])
    (folder / "broken").unlink()
    await executor.restart()
    assert await tokens(executor) == [empty_worker.TOKEN] * 2
