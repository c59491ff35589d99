"""A core's connection to the nursery that forks its workers: requests, and what is told of workers' ends.

The nursery ends all workers of a core when this connection ends. Does not know who keeps the nursery, nor ranks.
"""

import asyncio
import logging
import os
import socket
from collections import deque
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import NamedTuple

import msgspec

from pyllm.child import ORPHANED_EXIT_CODE
from pyllm.errors import StartError
from pyllm.messages import MAX_NURSERY_MESSAGE, Ended, Fork, Forked, NotForked, NurseryMessage
from pyllm.supervisor import Process

RETRY_INTERVAL = 0.05  # seconds between two looks for a nursery

logger = logging.getLogger(__name__)


class NurseryClient:
    """`address` is the path of the nursery's socket. Connects when a worker is wanted, and again after its death."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._socket: socket.socket | None = None
        self._pending: deque[_PendingFork] = deque()
        self._workers: dict[int, Process] = {}
        self._is_closed = False

    async def fork(self, name: str, patience: float) -> Process:
        """A worker that is not configured yet, watched. Waits for a nursery, for so many seconds at most.

        Raises:
            StartError: there was none, or it could not fork.
        """
        reason: OSError | None = None
        try:
            async with asyncio.timeout(patience):
                while True:
                    try:
                        return await self._ask(name)
                    except OSError as error:
                        reason = error
                    await asyncio.sleep(RETRY_INTERVAL)
        except TimeoutError:
            text = f": {reason}" if reason else ""
            raise StartError(f"{name} was not forked within {patience:g} s{text}") from None

    def close(self) -> None:
        """End the connection, and with it all workers that are left; no more are forked."""
        self._is_closed = True
        self._lose(_closed())

    async def _ask(self, name: str) -> Process:
        nursery = self._connected()
        ours, theirs = Pipe()
        stderr, their_stderr = os.pipe()
        pending = _PendingFork(name, ours, stderr, asyncio.get_running_loop().create_future())
        try:
            with theirs, os.fdopen(their_stderr, "wb"):
                socket.send_fds(nursery, [msgspec.msgpack.encode(Fork())], [theirs.fileno(), their_stderr])
        except OSError:
            pending.forget()
            raise
        self._pending.append(pending)
        try:
            return await asyncio.shield(pending.worker)
        except asyncio.CancelledError:
            pending.worker.add_done_callback(_end)  # It is forked all the same.
            raise

    def _connected(self) -> socket.socket:
        if self._is_closed:
            raise _closed()
        if self._socket is None:
            nursery = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            nursery.setblocking(False)
            try:
                nursery.connect(self._address)
            except OSError:
                nursery.close()
                raise
            self._socket = nursery
            asyncio.get_running_loop().add_reader(nursery.fileno(), self._receive)
        return self._socket

    def _receive(self) -> None:
        while self._socket is not None:
            try:
                data, files, *_ = socket.recv_fds(self._socket, MAX_NURSERY_MESSAGE, 1, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            except OSError:
                data, files = b"", []
            if not data:
                logger.warning("the process that workers are forked from has ended")
                self._lose(ConnectionResetError("the nursery has ended"))
                return
            match msgspec.msgpack.decode(data, type=NurseryMessage):
                case Forked(pid):
                    self._take(self._pending.popleft(), pid, files)
                case NotForked(reason):
                    self._pending.popleft().fail(StartError(reason))
                case Ended(pid, code):
                    if (worker := self._workers.pop(pid, None)) is not None:
                        worker.tell_code(code)

    def _take(self, pending: "_PendingFork", pid: int, files: list[int]) -> None:
        try:
            (pidfd,) = files
            worker = Process(pending.name, pid, pending.connection, lambda: None, pending.stderr, pidfd=pidfd)
        except (OSError, ValueError) as error:  # What is forked ends when it finds nobody at its connection.
            for descriptor in files:
                os.close(descriptor)
            pending.fail(StartError(f"worker {pid} cannot be watched: {error}; raise the limit of open files"))
            return
        worker.watch()
        self._workers[pid] = worker
        pending.worker.set_result(worker)

    def _lose(self, error: Exception) -> None:
        """Without a nursery there are no workers: the kernel ends them, and nobody tells how they ended."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
        workers, self._workers = self._workers, {}
        for worker in workers.values():
            worker.failure = worker.failure or "the nursery has ended, and the kernel ends what it has forked"
            worker.tell_code(ORPHANED_EXIT_CODE)
        while self._pending:
            self._pending.popleft().fail(error)


def _end(unwanted: "asyncio.Future[Process]") -> None:
    if unwanted.exception() is None:
        unwanted.result().kill()


def _closed() -> StartError:
    return StartError("no more workers are forked: their core ends")


class _PendingFork(NamedTuple):
    """A worker that was asked for, and is not there yet."""

    name: str
    connection: Connection
    stderr: int
    worker: "asyncio.Future[Process]"

    def fail(self, error: Exception) -> None:
        self.forget()
        self.worker.set_exception(error)

    def forget(self) -> None:
        self.connection.close()
        os.close(self.stderr)
