"""The parent's side of supervision: one child process, watched on the event loop.

Knows a child's stage, whether it is ready, silent or ended, and how to end it with its process group. Does not know a
child's role, nor its successor. `supervision/parent_link.py` is the other side.
"""

import asyncio
import contextlib
import os
import signal
import socket
import struct
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import msgspec

from pyllm.errors import EngineDeadError, StartError, WrongSettingError
from pyllm.machine.memory import num_oom_kills
from pyllm.supervision import json_log
from pyllm.supervision.child_log import ChildLog
from pyllm.supervision.log_level import changed_log_level
from pyllm.supervision.process_handle import ProcessHandle, child_handle
from pyllm.supervision.started_child import StartedChild, reap, start_child
from pyllm.wire.heartbeat import HEARTBEAT_INTERVAL, SILENCE
from pyllm.wire.messages import Heartbeat, Restarts
from pyllm.wire.supervision_messages import ChildMessage, Failed, Kept, ReloadAsked, Started

# Seconds to wait for the end of a child after SIGKILL, which is sent as soon as the deadline of SIGTERM has passed.
KILL_TIMEOUT = 10.0
ENDING_SILENCE = 10.0  # seconds without a message from a child that has reported its failure: its end may be slow
# Seconds after the end of a child that another process reaps, until its exit code counts as unknown.
CODE_TIMEOUT = 1.0
TICK = HEARTBEAT_INTERVAL / 2  # seconds between two checks of a child
STACKS_TIMEOUT = 0.2  # seconds for a silent child to write its stacks


class ChildProcess:
    """One child: its process id, its connection, and its last reports.

    `reap()` returns the exit code once the process has ended (negative: the signal), or None if `tell_code` will give
    it: then another process has started the child, and `handle` is required. `stderr` is our end of a pipe from the
    child's stderr, `memory` a descriptor of memory shared with the child. Between construction and `watch` the child
    runs unwatched, so that a thread without an event loop can start it.
    """

    def __init__(
        self,
        name: str,
        pid: int,
        connection: Connection,
        reap: Callable[[], int | None],
        stderr: int | None = None,
        *,
        handle: ProcessHandle | None = None,
        memory: int | None = None,
        count_oom_kills: Callable[[], int] = num_oom_kills,
    ) -> None:
        self.name = name
        self.pid = pid
        self.stage = "starting"
        self.progress = 0.0  # the share of the model that it has loaded
        self.on_progress: Callable[[float], None] = lambda progress: None
        self.on_kept: Callable[[Kept], None] = lambda kept: None
        self.restarts: tuple[Restarts, ...] = ()  # of its own children
        self.list_restarts: Callable[[], Sequence[Restarts]] = tuple  # the restarts to send to the child
        self.news: Callable[[], bytes] = bytes  # news to send to the child, which only its role understands
        self._told = b""
        self.on_reload_asked: Callable[[], None] = lambda: None
        self.step = -1  # the last step that it has reported, twice a second, if it runs steps
        self.failure: str | None = None
        self.failed_by_setting = False  # whether it has reported that a setting is at fault
        self.silent = False  # whether it was killed because it sent no messages
        self.memory = b""  # the contents of the shared memory at its end
        self.blamed_on_request = False  # whether it has reported that its end is the fault of one request
        self._connection = connection
        # The same socket for sends that must not block: a stopped child reads nothing.
        self._socket = socket.socket(fileno=os.dup(connection.fileno()))
        self._unsent = bytearray()
        self._log = None if stderr is None else ChildLog(stderr, lambda lines: json_log.forward(self.name, lines))
        self._memory = memory
        self._reap = reap
        # A child of another process may have been reaped by now; it always has its own process group.
        self._leads_group = handle is not None or os.getpgid(pid) == pid
        self._process = child_handle(pid) if handle is None else handle
        self._awaiting_code: asyncio.TimerHandle | None = None
        self._decoder = msgspec.msgpack.Decoder(ChildMessage)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ticking: asyncio.TimerHandle | None = None
        self._silent_ticks = 0
        self._has_spoken = False
        self._count_oom_kills = count_oom_kills
        self._was_heard = True  # since the last tick
        self._is_killed = False  # by us
        # The count at the last sign of life: a process that the kernel's OOM killer has chosen may end late, but sends
        # no more messages.
        self._num_oom_kills = self._next_num_oom_kills = count_oom_kills()
        self._given_up = ""

    @property
    def log(self) -> bytes:
        """The last 64 KiB that the child wrote to stderr; empty without a pipe."""
        return b"" if self._log is None else self._log.tail

    def configure(self, config: msgspec.Struct) -> None:
        """Send its configuration to a child of `spawn`, which is a spare before that. Does not wait."""
        frame = msgspec.msgpack.encode(config)
        self._unsent += struct.pack("!i", len(frame)) + frame  # the format of `Connection.recv_bytes`
        self._send_unsent()

    def watch(self) -> None:
        """Watch the child on the running event loop from now on; a second call changes nothing."""
        if self._loop is not None:
            return
        self._loop = loop = asyncio.get_running_loop()
        self.started: asyncio.Future[str] = loop.create_future()
        self.exited: asyncio.Future[int] = loop.create_future()
        loop.add_reader(self._connection.fileno(), self._read)
        loop.add_reader(self._process.fileno(), self._exit)
        if self._log is not None:
            loop.add_reader(self._log.descriptor, self._read_log)
        self._ticking = loop.call_later(TICK, self._tick)
        self._send_unsent()

    async def ready(self, deadline: float) -> str:
        """Wait at most `deadline` seconds until the child reports that it is ready; returns the address it serves.

        Raises:
            StartError: the child ended or is late; the text has its stage.
            WrongSettingError: the child ended because of a wrong setting; the text names it.
        """
        either: set[asyncio.Future[Any]] = {self.started, self.exited}
        await asyncio.wait(either, timeout=deadline, return_when=asyncio.FIRST_COMPLETED)
        if self.started.done():
            return self.started.result()
        if self.exited.done():
            if self.failed_by_setting and self.failure is not None:
                raise WrongSettingError(self.failure)
            raise StartError(self.exit_summary())
        raise StartError(f"{self.name} was not ready after {deadline:g} s: it was still {self.stage}")

    async def stop(self, grace: float) -> int | None:
        """Send SIGTERM, then SIGKILL after `grace` seconds; returns the exit code, or None if the child lives on."""
        self.signal(signal.SIGTERM)
        await asyncio.wait({self.exited}, timeout=grace)
        if not self.exited.done():
            self.kill()
            await asyncio.wait({self.exited}, timeout=KILL_TIMEOUT)
        return self.exited.result() if self.exited.done() else None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the child has ended already."""
        if self._loop is None:
            self.watch()
        if not self.exited.done():
            with contextlib.suppress(ProcessLookupError):  # reaped by another process
                self._process.signal(number)

    def kill(self) -> None:
        """Send SIGKILL to the child, and to all of its process group if it has its own."""
        self._is_killed = True
        self.signal(signal.SIGKILL)
        if not self.exited.done():
            self._kill_group()

    def has_ended(self) -> bool:
        """Whether a child that is not watched has ended."""
        return bool(wait([self._process.fileno()], 0))

    def abandon(self) -> None:
        """Kill a child that was neither configured nor watched; there need be no event loop."""
        self._kill_group()
        wait([self._process.fileno()], KILL_TIMEOUT)
        self._reap()
        self._close()

    def tell_code(self, code: int) -> None:
        """Set the exit code of a child that another process reaps."""
        self._reap = lambda: code
        if self._awaiting_code is not None:
            self._exit()

    def give_up(self, reason: str) -> None:
        """Tell the child that a process it needs will not come back; see `ParentLink.given_up`."""
        self._given_up = reason
        self._send_heartbeat()

    def send_news(self) -> None:
        """Send the news now, and not with the next heartbeat."""
        if self._loop is not None and not self.exited.done():
            self._send_heartbeat()

    def exit_summary(self) -> str:
        """One sentence on the child's end, for the log and for the streams that end with it."""
        code = self.exited.result()
        how = f"was killed by {_signal_name(-code)}" if code < 0 else f"exited with code {code}"
        when = f", at step {self.step} or later" if self.step >= 0 else ""
        return f"{self.name} {how} while {self.stage}{when}" + (f": {self.failure}" if self.failure else "")

    def error(self) -> EngineDeadError:
        """The child's end as an exception."""
        return EngineDeadError(self.exit_summary())

    def _read(self) -> None:
        try:
            while self._connection.poll():
                self._handle(self._decoder.decode(self._connection.recv_bytes()))
        except (EOFError, OSError, msgspec.DecodeError):
            self._watching.remove_reader(self._connection.fileno())

    def _handle(self, message: ChildMessage) -> None:
        self._has_spoken = True
        self._silent_ticks = 0
        self._was_heard = True
        match message:
            case Heartbeat(stage, step, blamed_on_request=blamed_on_request, progress=progress):
                self.stage, self.step, self.blamed_on_request = stage, step, blamed_on_request
                if progress != self.progress:
                    self.progress = progress
                    self.on_progress(progress)
            case Started(address):
                self.stage = "ready"
                if not self.started.done():
                    self.started.set_result(address)
            case Failed(stage, text, is_setting):
                self.stage, self.failure, self.failed_by_setting = stage, text, is_setting
            case ReloadAsked():
                self.on_reload_asked()
            case Kept(workers=workers):
                self.restarts = self.restarts if workers is None else workers
                self.on_kept(message)

    def _read_log(self) -> None:
        assert self._log is not None
        if not self._log.read():
            self._watching.remove_reader(self._log.descriptor)

    def _tick(self) -> None:
        self._ticking = self._watching.call_later(TICK, self._tick)
        self._send_heartbeat()
        if self._was_heard:
            self._was_heard = False
            self._num_oom_kills = max(self._num_oom_kills, self._next_num_oom_kills)
            self._next_num_oom_kills = self._count_oom_kills()
        # A loading child may hold the interpreter for long, so its silence counts only if a signal has stopped it.
        counts = self.started.done() or self._stands_still()
        # Counted in our own ticks, not by the clock: a parent that was stopped must not blame its child.
        self._silent_ticks = self._silent_ticks + 1 if counts else 0
        if self._silent_ticks * TICK > (SILENCE if self.failure is None else ENDING_SILENCE):
            self._end_silent()

    def _stands_still(self) -> bool:
        """Whether a signal has stopped it."""
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2]
        except OSError:  # It has ended.
            return False
        return state.startswith("T")

    def _end_silent(self) -> None:
        if not self.silent:
            self.silent = True
            self.failure = self.failure or f"it gave no sign of life for {SILENCE:g} s"
            if self._stands_still():  # It cannot write its stacks either.
                self.kill()
                return
            if self.started.done():  # Earlier it may not handle the signal yet.
                self.signal(signal.SIGUSR1)
            self._watching.call_later(STACKS_TIMEOUT, self.kill)

    def _send_heartbeat(self) -> None:
        # A child without a message so far may be a spare, which reads only its configuration.
        if self._has_spoken and not self._unsent:
            news = self.news()
            heartbeat = Heartbeat(
                "parent",
                reason=self._given_up,
                log_level=changed_log_level(),
                restarts=tuple(self.list_restarts()),
                news=b"" if news is self._told else news,
            )
            self._told = news
            frame = msgspec.msgpack.encode(heartbeat)
            self._unsent += struct.pack("!i", len(frame)) + frame
            self._send_unsent()

    def _send_unsent(self) -> None:
        """Send unsent bytes, as many as the child takes now; the rest as soon as it takes more."""
        if self._loop is not None and self.exited.done():
            return
        with contextlib.suppress(BlockingIOError):
            try:
                del self._unsent[: self._socket.send(self._unsent, socket.MSG_DONTWAIT)]
            except (BrokenPipeError, ConnectionResetError):  # It has ended; `_exit` reports it.
                self._unsent.clear()
        if self._loop is not None:
            if self._unsent:
                self._loop.add_writer(self._socket.fileno(), self._send_unsent)
            else:
                self._loop.remove_writer(self._socket.fileno())

    def _exit(self) -> None:
        # Kill the rest of its process group before its id can be reused.
        self._kill_group()
        loop = self._watching
        loop.remove_reader(self._process.fileno())
        code = self._reap()
        if code is None:
            self._awaiting_code = loop.call_later(CODE_TIMEOUT, self.tell_code, -signal.SIGKILL)
            return
        if self._awaiting_code is not None:
            self._awaiting_code.cancel()
            self._awaiting_code = None
        self._read()
        if code == -signal.SIGKILL and not self._is_killed and self._count_oom_kills() > self._num_oom_kills:
            self.failure = self.failure or "probably by the kernel, for want of memory"
        loop.remove_reader(self._connection.fileno())
        loop.remove_writer(self._socket.fileno())
        if self._log is not None:
            loop.remove_reader(self._log.descriptor)
        if self._memory is not None:
            self.memory = os.pread(self._memory, os.fstat(self._memory).st_size, 0)
        if self._ticking is not None:
            self._ticking.cancel()
        self._close()
        self.exited.set_result(code)

    def _close(self) -> None:
        """Close all descriptors."""
        self._process.close()
        self._socket.close()
        self._connection.close()
        if self._log is not None:
            self._log.close()
        if self._memory is not None:
            os.close(self._memory)

    def _kill_group(self) -> None:
        if self._leads_group:
            self._process.kill_group()

    @property
    def _watching(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None, "watch() comes first"
        return self._loop


def spawn(name: str, role: str, *files: int, memory_size: int = 0, module: str = "pyllm") -> ChildProcess:
    """Start a child by `start_child`; it waits for `configure`, and is a spare until then.

    Raises:
        OSError: see `start_child`.
    """
    return watchable(name, start_child(name, role, *files, memory_size=memory_size, module=module))


def watchable(name: str, started: StartedChild) -> ChildProcess:
    """A child of this process that was started before."""
    process = started.process
    return ChildProcess(
        name, process.pid, started.connection, partial(reap, process), started.stderr, memory=started.memory
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # Not all real-time signals have a name.
        return f"signal {number}"


async def end(processes: list[ChildProcess]) -> list[ChildProcess]:
    """Kill processes that have no work to finish. Returns those that have not ended within `KILL_TIMEOUT`."""
    for process in processes:
        process.kill()
    if processes:
        await asyncio.wait([process.exited for process in processes], timeout=KILL_TIMEOUT)
    return [process for process in processes if not process.exited.done()]
