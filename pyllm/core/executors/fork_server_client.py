"""A core's connection to the fork server: requests workers and receives their ends.

When this connection ends, the fork server ends all workers of the core. Knows no ranks, and no supervisor.
"""

import asyncio
import errno
import logging
import os
import socket
from collections import deque
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import NamedTuple

import msgspec

from pyllm.errors import StartError
from pyllm.supervision.child_process import ChildProcess
from pyllm.supervision.parent_link import ORPHANED_EXIT_CODE
from pyllm.supervision.process_handle import PidfdHandle, RemoteHandle
from pyllm.wire.messages import MAX_FORK_SERVER_MESSAGE, Ended, Fork, Forked, ForkServerMessage, NotForked, Signal

RETRY_INTERVAL = 0.05  # seconds between two looks for a fork server

logger = logging.getLogger(__name__)


class ForkServerClient:
    """`address` is the path of the fork server's socket. Connects at the first request, and again if the server died.

    `core_index` is the index of the core, the same as its predecessor's.
    """

    def __init__(self, address: str, core_index: int = 0) -> None:
        self._address = address
        self._core_index = core_index
        self._socket: socket.socket | None = None
        self._pending: deque[_PendingFork] = deque()
        self._workers: dict[int, ChildProcess] = {}
        self._is_closed = False

    async def fork(self, name: str, patience: float, memory: int | None = None) -> ChildProcess:
        """Fork a worker that is watched and not configured yet. Waits up to `patience` seconds for a fork server.

        `memory` is a descriptor of memory that outlives the worker, for the worker to share.

        Raises:
            StartError: there was no fork server, or it could not fork.
        """
        reason: OSError | None = None
        try:
            async with asyncio.timeout(patience):
                while True:
                    try:
                        return await self._ask(name, memory)
                    except OSError as error:
                        reason = error
                    await asyncio.sleep(RETRY_INTERVAL)
        except TimeoutError:
            text = f": {reason}" if reason else ""
            raise StartError(f"{name} was not forked within {patience:g} s{text}") from None

    def close(self) -> None:
        """End the connection, and with it all remaining workers; no more are forked."""
        self._is_closed = True
        self._lose(_closed())

    async def _ask(self, name: str, memory: int | None) -> ChildProcess:
        fork_server = self._connected()
        ours, theirs = Pipe()
        stderr, their_stderr = os.pipe()
        pending = _PendingFork(name, ours, stderr, asyncio.get_running_loop().create_future())
        try:
            with theirs, os.fdopen(their_stderr, "wb"):
                fork = msgspec.msgpack.encode(Fork(self._core_index))
                files = [theirs.fileno(), their_stderr]
                socket.send_fds(fork_server, [fork], files if memory is None else [*files, memory])
        except OSError:
            pending.forget()
            raise
        self._pending.append(pending)
        try:
            return await asyncio.shield(pending.worker)
        except asyncio.CancelledError:
            pending.worker.add_done_callback(_end)  # The worker is forked anyway, and must be killed.
            raise

    def _connected(self) -> socket.socket:
        if self._is_closed:
            raise _closed()
        if self._socket is None:
            fork_server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            fork_server.setblocking(False)
            try:
                fork_server.connect(self._address)
            except OSError:
                fork_server.close()
                raise
            self._socket = fork_server
            asyncio.get_running_loop().add_reader(fork_server.fileno(), self._receive)
        return self._socket

    def _receive(self) -> None:
        while self._socket is not None:
            try:
                data, files, *_ = socket.recv_fds(self._socket, MAX_FORK_SERVER_MESSAGE, 1, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            except OSError:
                data, files = b"", []
            if not data:
                logger.warning("the fork server has ended")
                self._lose(ConnectionResetError("the fork server has ended"))
                return
            match msgspec.msgpack.decode(data, type=ForkServerMessage):
                case Forked(pid, has_pidfd):
                    self._take(self._pending.popleft(), pid, has_pidfd, files)
                case NotForked(reason):
                    self._pending.popleft().fail(StartError(reason))
                case Ended(pid, code):
                    if (worker := self._workers.pop(pid, None)) is not None:
                        worker.tell_code(code)

    def _take(self, pending: "_PendingFork", pid: int, has_pidfd: bool, files: list[int]) -> None:
        try:
            (watched,) = files
            handle = PidfdHandle(pid, watched) if has_pidfd else RemoteHandle(watched, partial(self._signal, pid))
            worker = ChildProcess(pending.name, pid, pending.connection, lambda: None, pending.stderr, handle=handle)
        except (OSError, ValueError) as error:  # The worker ends when its connection closes.
            for descriptor in files:
                os.close(descriptor)
            pending.fail(StartError(f"worker {pid} cannot be watched: {error}; raise the limit of open files"))
            return
        worker.watch()
        self._workers[pid] = worker
        pending.worker.set_result(worker)

    def _signal(self, pid: int, number: int, to_group: bool) -> None:
        try:
            if self._socket is not None:
                self._socket.send(msgspec.msgpack.encode(Signal(pid, number, to_group)))
        except OSError:  # The fork server has ended, and the kernel ends its workers.
            raise ProcessLookupError(errno.ESRCH, f"worker {pid} ends with the fork server") from None

    def _lose(self, error: Exception) -> None:
        """Count all workers as dead: the kernel kills the fork server's children, and their exit codes are lost."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
        workers, self._workers = self._workers, {}
        for worker in workers.values():
            worker.failure = worker.failure or "the fork server has ended, and the kernel killed its workers"
            worker.tell_code(ORPHANED_EXIT_CODE)
        while self._pending:
            self._pending.popleft().fail(error)


def _end(unwanted: "asyncio.Future[ChildProcess]") -> None:
    if unwanted.exception() is None:
        unwanted.result().kill()


def _closed() -> StartError:
    return StartError("no more workers are forked: their core ends")


class _PendingFork(NamedTuple):
    """A worker that was requested and is not forked yet."""

    name: str
    connection: Connection
    stderr: int
    worker: "asyncio.Future[ChildProcess]"

    def fail(self, error: Exception) -> None:
        self.forget()
        self.worker.set_exception(error)

    def forget(self) -> None:
        self.connection.close()
        os.close(self.stderr)
