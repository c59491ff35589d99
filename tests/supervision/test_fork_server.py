"""The process that workers are forked from, as a core and its parent see it; what cores do is in `tests/core`."""

import asyncio
import contextlib
import os
import re
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import msgspec
import psutil
import pytest

from pyllm.config.process_config import ForkServerConfig
from pyllm.errors import StartError
from pyllm.supervision import child_process
from pyllm.supervision.child_process import ChildProcess
from pyllm.wire.messages import Ended, Fork, Forked, ForkServerMessage, NotForked, Signal
from tests.waiting import until

STDERR = 2
PARENT = "tests.core.executors.entries:parent"
Make = Callable[..., Awaitable[ChildProcess]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Make]:
    started: list[ChildProcess] = []

    async def start(entry: str = PARENT, max_workers: int = 256) -> ChildProcess:
        started.append(child_process.spawn("the fork server", "fork_server"))
        started[-1].watch()
        started[-1].configure(ForkServerConfig(bind=f"{tmp_path}/forks", entry=entry, max_workers=max_workers))
        await started[-1].ready(60.0)
        return started[-1]

    yield start
    for fork_server in started:
        fork_server.kill()
        await fork_server.exited


class Worker(NamedTuple):
    """One that was forked, the connection to it, and what it has started."""

    pid: int
    connection: Connection
    child: psutil.Process
    end: int | None  # of a pipe that ends with it, where there are no pidfds


class Core:
    """A connection to the fork server."""

    def __init__(self, folder: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(f"{folder}/forks")
        self._end: int | None = None

    async def ask(self, *memory: int) -> tuple[ForkServerMessage, Connection]:
        """Ask for a worker, maybe with memory; gives the answer, and our end of its connection."""
        ours, theirs = Pipe()
        with theirs:
            socket.send_fds(self.socket, [msgspec.msgpack.encode(Fork())], [theirs.fileno(), STDERR, *memory])
        return await self.told(), ours

    async def told(self) -> ForkServerMessage:
        data, files, *_ = await asyncio.to_thread(socket.recv_fds, self.socket, 4096, 1)
        message: ForkServerMessage = msgspec.msgpack.decode(data, type=ForkServerMessage)
        if isinstance(message, Forked) and not message.has_pidfd:
            (self._end,) = files
        else:
            for pidfd in files:
                os.close(pidfd)
        return message

    async def fork(self) -> Worker:
        """A worker that has started another process."""
        answer, connection = await self.ask()
        assert isinstance(answer, Forked)
        child = psutil.Process(int(await asyncio.to_thread(connection.recv_bytes)))
        return Worker(answer.pid, connection, child, self._end)

    def close(self, *workers: Worker) -> None:
        self.socket.close()
        for worker in workers:
            worker.connection.close()
            if worker.end is not None:
                os.close(worker.end)


async def ended(*pids: int) -> None:
    """Wait until no such processes are left but such as nobody has reaped."""
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("code", [0, 7])
async def test_a_worker_is_forked_and_its_end_is_told(start: Make, tmp_path: Path, code: int) -> None:
    fork_server = await start()
    assert psutil.Process(fork_server.pid).cmdline()[0] == "pyllm::forks"
    core = Core(tmp_path)
    worker = await core.fork()
    assert psutil.Process(worker.pid).ppid() == fork_server.pid
    assert psutil.Process(worker.pid).cmdline()[0] == "pyllm::worker", "of which core and rank it is yet to be told"
    assert os.getpgid(worker.pid) == worker.pid
    worker.connection.send_bytes(str(code).encode())
    assert await core.told() == Ended(worker.pid, code)
    await ended(worker.child.pid)  # What is left in its group ends with it.
    core.close(worker)


async def test_without_pidfds_the_fork_server_signals_workers_for_their_core_alone(start: Make, tmp_path: Path) -> None:
    fork_server = await start("tests.core.executors.entries:parent_without_pidfd")
    one, other = Core(tmp_path), Core(tmp_path)
    first, second = await one.fork(), await other.fork()
    assert first.end is not None
    for core, pid, number in (
        (other, first.pid, signal.SIGKILL),  # not its worker
        (one, fork_server.pid, signal.SIGKILL),  # no worker
        (one, first.pid, signal.SIGTERM),
    ):
        core.socket.send(msgspec.msgpack.encode(Signal(pid, number)))
    assert await one.told() == Ended(first.pid, -signal.SIGTERM)
    assert os.read(first.end, 1) == b"", "the pipe ends with the worker"
    other.socket.send(msgspec.msgpack.encode(Signal(second.pid, signal.SIGSTOP)))
    other.socket.send(msgspec.msgpack.encode(Signal(second.pid, signal.SIGKILL, to_group=True)))
    assert await other.told() == Ended(second.pid, -signal.SIGKILL)
    await ended(second.child.pid)
    one.close(first)
    other.close(second)


async def test_a_signal_that_ends_a_worker_is_told(start: Make, tmp_path: Path) -> None:
    await start()
    core = Core(tmp_path)
    worker = await core.fork()
    os.kill(worker.pid, signal.SIGSEGV)
    assert await core.told() == Ended(worker.pid, -signal.SIGSEGV)
    core.close(worker)


async def test_ends_are_told_though_who_starts_the_fork_server_ignores_its_children(
    start: Make, tmp_path: Path
) -> None:
    handler = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        await start()
    finally:
        signal.signal(signal.SIGCHLD, handler)
    core = Core(tmp_path)
    worker = await core.fork()
    worker.connection.send_bytes(b"7")
    assert await core.told() == Ended(worker.pid, 7)
    core.close(worker)


async def test_a_core_that_follows_another_has_workers_when_those_of_the_other_are_gone(
    start: Make, tmp_path: Path
) -> None:
    """They may hold all the memory of a device until they are."""
    await start()
    first, second = Core(tmp_path), Core(tmp_path)
    workers = [await first.fork() for _ in range(8)]
    first.close(*workers)
    worker = await second.fork()
    assert not any(psutil.pid_exists(each.pid) for each in workers)
    second.close(worker)


async def test_workers_end_with_their_core_and_those_of_another_live_on(start: Make, tmp_path: Path) -> None:
    await start()
    one, other = Core(tmp_path), Core(tmp_path)
    lost, kept = await one.fork(), await other.fork()
    os.kill(lost.pid, signal.SIGSTOP)
    one.socket.close()
    await ended(lost.pid, lost.child.pid)
    kept.connection.send_bytes(b"3")
    assert await other.told() == Ended(kept.pid, 3)
    one.close(lost)
    other.close(kept)


async def test_memory_outlives_the_workers_that_get_it_and_none_of_200_leaves_a_descriptor(
    start: Make, tmp_path: Path
) -> None:
    fork_server = await start("tests.core.executors.entries:keeping")
    core, memory, words = Core(tmp_path), os.memfd_create("blocks"), []
    process = psutil.Process(fork_server.pid)
    of_worker, of_server = set(), []
    last = ""
    for _ in range(200):
        answer, connection = await core.ask(memory)
        assert isinstance(answer, Forked)
        before, count = (await asyncio.to_thread(connection.recv_bytes)).decode().rsplit(" ", 1)
        words.append(before == last)
        last = str(answer.pid)
        of_worker.add(int(count))
        of_server.append(process.num_fds())
        os.kill(answer.pid, signal.SIGKILL)
        assert await core.told() == Ended(answer.pid, -signal.SIGKILL)
        connection.close()
    assert all(words), "each found what the one before had left"
    assert len(of_worker) == 1
    await until(lambda: process.num_fds() == min(of_server), pause=0.01)  # While it forks it has a few more.
    _, connection = await core.ask()
    assert (await asyncio.to_thread(connection.recv_bytes)).startswith(b"none ")
    connection.close()
    os.close(memory)
    core.close()


async def test_what_is_no_request_ends_the_connection_and_its_workers(start: Make, tmp_path: Path) -> None:
    await start()
    core, other = Core(tmp_path), Core(tmp_path)
    worker = await core.fork()
    core.socket.send(b"no message")
    assert await asyncio.to_thread(core.socket.recv, 4096) == b""
    await ended(worker.pid)
    other.socket.send(msgspec.msgpack.encode(Fork()))  # without descriptors
    assert await asyncio.to_thread(other.socket.recv, 4096) == b""
    core.close(worker)
    other.close()


async def test_there_are_no_more_workers_than_allowed(start: Make, tmp_path: Path) -> None:
    await start(max_workers=1)
    core = Core(tmp_path)
    worker = await core.fork()
    refusal, connection = await core.ask()
    assert refusal == NotForked("1 workers live already, the most that may: use fewer ranks")
    connection.close()
    os.kill(worker.pid, signal.SIGKILL)
    assert await core.told() == Ended(worker.pid, -signal.SIGKILL)
    next_worker = await core.fork()
    core.close(worker, next_worker)
    await ended(next_worker.child.pid)  # Before the fork server is, which ends it.


async def test_workers_end_with_the_fork_server_and_it_with_its_parent(start: Make, tmp_path: Path) -> None:
    for end in (ChildProcess.kill, lambda fork_server: fork_server._socket.shutdown(socket.SHUT_RDWR)):
        fork_server = await start()
        core = Core(tmp_path)
        worker = await core.fork()
        os.kill(worker.pid, signal.SIGSTOP)
        end(fork_server)
        await fork_server.exited
        await ended(worker.pid)
        assert await asyncio.to_thread(core.socket.recv, 4096) == b""
        worker.child.kill()
        core.close(worker)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("tests.core.executors.entries:threaded", "^2 threads run where"),
        ("tests.core.executors.entries:none", "the fork server exited with code 1 while importing: .*AttributeError"),
    ],
)
async def test_a_fork_server_that_cannot_fork_says_why_and_when(
    start: Make, capfd: pytest.CaptureFixture[str], entry: str, reason: str
) -> None:
    with pytest.raises(StartError, match=reason):
        await start(entry)
    stamp = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"
    assert re.search(
        f"^{stamp} ERROR pyllm::forks pyllm.supervision.parent_link: failed while importing",
        capfd.readouterr().err,
        re.M,
    )
