"""The parent's side of supervision: one child process, watched on the event loop. `child.py` is the other side.

Knows when a child is ready, what it was doing, when it ended and how to end it. Does not know what children are for.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from pyllm.errors import EngineDeadError, StartError
from pyllm.messages import ChildMessage, Failed, Heartbeat, Started

# Between SIGTERM's deadline and a SIGKILL nothing more is waited for; this is how long a killed child may take to go.
KILL_TIMEOUT = 10.0


class Process:
    """One child: its process id, the connection it reports on, and what it reported last.

    `reap()` gives the exit code once the process has ended (negative: the signal), else None. Between construction and
    `watch` the child runs unwatched, so that it can be started by a thread that has no event loop yet.
    """

    def __init__(
        self,
        name: str,
        pid: int,
        connection: Connection,
        reap: Callable[[], int | None],
        stderr: int | None = None,
    ) -> None:
        self.name = name
        self.pid = pid
        self.stage = "starting"
        self.failure: str | None = None
        self.silent = False
        self.log = b""
        self._stderr = stderr
        self._connection = connection
        self._watched = False
        self._reap = reap
        self._pidfd = os.pidfd_open(pid)
        self._decoder = msgspec.msgpack.Decoder(ChildMessage)

    def watch(self) -> None:
        """Follow the child on the running event loop from now on."""
        self._watched = True
        loop = asyncio.get_running_loop()
        self.started: asyncio.Future[str] = loop.create_future()
        self.exited: asyncio.Future[int] = loop.create_future()
        loop.add_reader(self._connection.fileno(), self._read)
        loop.add_reader(self._pidfd, self._exit)
        if self._stderr is not None:
            os.set_blocking(self._stderr, False)
            loop.add_reader(self._stderr, self._read_stderr)

    def configure(self, config: msgspec.Struct) -> None:
        """Tell the child what it is for."""
        with contextlib.suppress(BrokenPipeError):  # It ended already; `watch` will tell.
            self._connection.send_bytes(msgspec.msgpack.encode(config))

    async def ready(self, deadline: float) -> str:
        """Wait at most `deadline` seconds until the child reports that it is ready; gives the address it serves.

        Raises:
            StartError: it ended or is late; the text has the stage it was in.
        """
        either: set[asyncio.Future[Any]] = {self.started, self.exited}
        await asyncio.wait(either, timeout=deadline, return_when=asyncio.FIRST_COMPLETED)
        if self.started.done():
            return self.started.result()
        if self.exited.done():
            raise StartError(self.obituary())
        raise StartError(f"{self.name} was not ready after {deadline:g} s: it was still {self.stage}")

    async def stop(self, grace: float) -> int:
        """SIGTERM, then SIGKILL after `grace` seconds; gives the exit code."""
        if not self._watched:
            self.watch()
        self.signal(signal.SIGTERM)
        await asyncio.wait({self.exited}, timeout=grace)
        if not self.exited.done():
            self.signal(signal.SIGKILL)
            await asyncio.wait_for(asyncio.shield(self.exited), KILL_TIMEOUT)
        return self.exited.result()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the child has ended already."""
        if not self.exited.done():
            signal.pidfd_send_signal(self._pidfd, number)

    def obituary(self) -> str:
        """One sentence on how the child ended, for the log and the streams that it took along."""
        code = self.exited.result()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        return f"{self.name} {how} while {self.stage}" + (f": {self.failure}" if self.failure else "")

    def error(self) -> EngineDeadError:
        """The child's end as an exception."""
        return EngineDeadError(self.obituary())

    def _read(self) -> None:
        try:
            while self._connection.poll():
                self._handle(self._decoder.decode(self._connection.recv_bytes()))
        except (EOFError, OSError, msgspec.DecodeError):
            asyncio.get_running_loop().remove_reader(self._connection.fileno())

    def _handle(self, message: ChildMessage) -> None:
        match message:
            case Heartbeat(stage):
                self.stage = stage
            case Started(address):
                self.stage = "ready"
                if not self.started.done():
                    self.started.set_result(address)
            case Failed(stage, text):
                self.stage, self.failure = stage, text

    def _read_stderr(self) -> None:
        assert self._stderr is not None
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._stderr, 1 << 16):
                sys.stderr.buffer.write(data)
                sys.stderr.flush()
                self.log = (self.log + data)[-(64 << 10) :]
            asyncio.get_running_loop().remove_reader(self._stderr)

    def _exit(self) -> None:
        code = self._reap()
        if code is None:
            return
        loop = asyncio.get_running_loop()
        self._read()
        loop.remove_reader(self._pidfd)
        loop.remove_reader(self._connection.fileno())
        os.close(self._pidfd)
        self._connection.close()
        if self._stderr is not None:
            self._read_stderr()
            loop.remove_reader(self._stderr)
            os.close(self._stderr)
        self.exited.set_result(code)


def spawn(name: str, role: str, config: msgspec.Struct, *files: int) -> Process:
    """Start `python -m pyllm` in a child role, its configuration sent over the connection.

    The user's script is not imported again. `files` are descriptors that the child inherits. Call it from the main
    thread: the kernel's parent-death signal fires when the starting thread ends.
    """
    ours, theirs = Pipe()
    with theirs:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-m", "pyllm", "_child", role, str(theirs.fileno()), *map(str, files)],
            pass_fds=(theirs.fileno(), *files),
            stdin=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C in a terminal is for the parent, which then drains its children.
        )
    with contextlib.suppress(BrokenPipeError):  # It ended already; `watch` will tell.
        ours.send_bytes(msgspec.msgpack.encode(config))
    return Process(name, process.pid, ours, process.poll)
