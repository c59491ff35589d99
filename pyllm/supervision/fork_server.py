"""The fork server: one process imports everything that workers need, once; each worker is its fork.

A fork takes some milliseconds, and shares the imported pages. Knows the core of each worker, and ends the workers of a
core that has ended; does not know the work of workers. It has one thread, as a fork keeps none of the others.
"""

import contextlib
import gc
import os
import pkgutil
import selectors
import signal
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple, NoReturn

import msgspec
from setproctitle import setproctitle

from pyllm.config.engine_settings import MAX_CORES
from pyllm.config.process_config import ForkServerConfig
from pyllm.errors import ConfigError
from pyllm.supervision.parent_link import ORPHANED_EXIT_CODE, ParentLink, attach, die_with_parent
from pyllm.supervision.process_handle import open_pidfd
from pyllm.supervision.process_memory import forget_files, return_freed_memory
from pyllm.wire.heartbeat import HEARTBEAT_INTERVAL
from pyllm.wire.messages import (
    MAX_FORK_SERVER_MESSAGE,
    Ended,
    Fork,
    Forked,
    ForkServerMessage,
    ForkServerRequest,
    NotForked,
    Signal,
)

TITLE = "pyllm::forks"
MAX_PATIENCE = 10.0  # seconds that a fork waits for the ended core's workers, which the kernel may fail to end
_HAS_ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT

# The main function of a worker. It gets the connection to its core, over which its configuration comes, and, if the
# core has memory that outlives the worker, a descriptor of it. Its stderr is already the core's pipe.
WorkerMain = Callable[[Connection, int | None], None]


def main(config: ForkServerConfig, connection: Connection) -> int:
    """Import, and fork workers until the parent ends; returns an exit code on failure."""
    parent = attach(connection, TITLE, in_a_thread=False)
    return parent.run(lambda: _work(config, parent))


class ForkServer:
    """Serves cores, each over its own connection: receives `ForkServerRequest`s and sends `ForkServerMessage`s."""

    def __init__(self, parent: ParentLink, listener: socket.socket, worker_main: WorkerMain, max_workers: int) -> None:
        self._parent = parent
        self._worker_main = worker_main
        self._max_workers = max_workers
        self._num_cores = 0
        self._workers: dict[int, _Worker] = {}
        self._wanted: deque[_Wanted] = deque()
        # Standard streams and descriptors of libraries, which workers share.
        self._shared = _open_descriptors() - {parent.fileno(), listener.fileno()}
        self._selector = selectors.PollSelector()
        self._selector.register(parent, selectors.EVENT_READ, parent.listen)
        self._selector.register(listener, selectors.EVENT_READ, partial(self._accept, listener))
        ended = _ended_descriptor()
        self._selector.register(ended, selectors.EVENT_READ, partial(self._reap_ended, ended))

    def serve(self) -> NoReturn:
        """Answer cores and reap workers until the parent ends."""
        next_beat = time.monotonic()
        while True:
            for key, _ in self._selector.select(max(0.0, next_beat - time.monotonic())):
                key.data()
            if time.monotonic() >= next_beat:
                next_beat = time.monotonic() + HEARTBEAT_INTERVAL
                self._parent.beat()
                self._fork_wanted()

    def _accept(self, listener: socket.socket) -> None:
        core, _ = listener.accept()
        if self._num_cores == MAX_CORES:
            core.close()
            return
        self._num_cores += 1
        core.setblocking(False)
        self._selector.register(core, selectors.EVENT_READ, partial(self._receive, core))

    def _receive(self, core: socket.socket) -> None:
        files: Sequence[int] = ()
        try:
            data, files, *_ = socket.recv_fds(core, MAX_FORK_SERVER_MESSAGE, 3, socket.MSG_CMSG_CLOEXEC)
            match msgspec.msgpack.decode(data, type=ForkServerRequest):
                case Fork(core_index):
                    connection, stderr, *memory = files
                    wanted = _Wanted(core, core_index, time.monotonic(), connection, stderr, *memory)
                    self._wanted.append(wanted)
                case Signal(pid, number, to_group):
                    _close(files)
                    self._signal(core, pid, number, to_group)
        except BlockingIOError:
            return
        except (OSError, ValueError, msgspec.DecodeError):  # The core has ended, or this is no message of ours.
            self._lose(core)
            _close(files)
        else:
            self._fork_wanted()

    def _signal(self, core: socket.socket, pid: int, number: int, to_group: bool) -> None:
        """Send a signal for a core without pidfds. Workers stay in the table until reaped, so ids are not reused."""
        if (worker := self._workers.get(pid)) is not None and worker.core is core:
            with contextlib.suppress(ProcessLookupError):
                (os.killpg if to_group else os.kill)(pid, number)

    def _fork_wanted(self) -> None:
        """Fork the wanted workers once those of each core's predecessor, which may hold device memory, are gone."""
        early: deque[_Wanted] = deque()
        while self._wanted:
            wanted = self._wanted.popleft()
            is_lost = wanted.core.fileno() < 0
            if not is_lost and self._is_early(wanted):
                early.append(wanted)
                continue
            if not is_lost:
                self._fork(wanted)
            _close(wanted.files())
        self._wanted = early

    def _is_early(self, wanted: "_Wanted") -> bool:
        is_waited_for = any(
            worker.core_index == wanted.core_index and worker.core.fileno() < 0 for worker in self._workers.values()
        )
        return is_waited_for and time.monotonic() < wanted.since + MAX_PATIENCE

    def _fork(self, wanted: "_Wanted") -> None:
        core, core_index = wanted.core, wanted.core_index
        if len(self._workers) >= self._max_workers:
            self._send(core, NotForked(f"{self._max_workers} workers live already, the most that may: use fewer ranks"))
            return
        fork_server = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self._send(core, NotForked(f"no process can be forked: {error}; raise the limits of processes and memory"))
            return
        if pid == 0:
            self._live(fork_server, wanted)
        os.setpgid(pid, pid)  # The worker does the same; either may be first.
        end = None
        if (watched := open_pidfd(pid)) is None:
            watched, end = os.pipe()
        self._workers[pid] = _Worker(core, core_index, end)
        self._send(core, Forked(pid, has_pidfd=end is None), [watched])
        os.close(watched)

    def _live(self, fork_server: int, wanted: "_Wanted") -> NoReturn:
        """The worker's life, from its fork to its end."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setpgid(0, 0)
            die_with_parent()
            if os.getppid() != fork_server:  # The fork server ended before that call.
                os._exit(ORPHANED_EXIT_CODE)
            os.dup2(wanted.stderr, 2)
            # Above all those of other workers: their peers must notice when these end.
            for descriptor in _open_descriptors() - self._shared - {wanted.connection, wanted.memory}:
                os.close(descriptor)
            setproctitle("pyllm::worker")  # The worker adds core and rank when it has its configuration.
            self._worker_main(Connection(wanted.connection), wanted.memory)
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:  # noqa: BLE001 - this process must never return into the fork server's code
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _reap_ended(self, descriptor: int) -> None:
        os.read(descriptor, 4096)
        ended = [pid for pid in self._workers if os.waitid(os.P_PID, pid, _HAS_ENDED) is not None]
        for pid in ended:
            core, _, end = self._workers.pop(pid)
            # Kill the rest of its process group before its id can be reused.
            _kill_group(pid)
            _, status = os.waitpid(pid, 0)
            if end is not None:
                os.close(end)
            self._send(core, Ended(pid, os.waitstatus_to_exitcode(status)))
        self._fork_wanted()

    def _send(self, core: socket.socket, message: ForkServerMessage, files: Sequence[int] = ()) -> None:
        """Send a message to a core; if it has ended or reads nothing, end its workers."""
        if core.fileno() < 0:
            return
        try:
            socket.send_fds(core, [msgspec.msgpack.encode(message)], files)
        except OSError:
            self._lose(core)

    def _lose(self, core: socket.socket) -> None:
        """Disconnect a core and kill its workers, including stopped ones; they are reaped like all others."""
        if core.fileno() < 0:
            return
        self._num_cores -= 1
        self._selector.unregister(core)
        core.close()
        for pid, worker in self._workers.items():
            if worker.core is core:
                _kill_group(pid)


class _Worker(NamedTuple):
    """A worker's core; without a pidfd, also the end of a pipe that stays open until the worker is reaped."""

    core: socket.socket
    core_index: int
    end: int | None


class _Wanted(NamedTuple):
    """A core's request for a worker, and its time."""

    core: socket.socket
    core_index: int
    since: float
    connection: int
    stderr: int
    memory: int | None = None  # outlives the worker

    def files(self) -> tuple[int, ...]:
        """The descriptors that came with the request."""
        files = self.connection, self.stderr
        return files if self.memory is None else (*files, self.memory)


def _work(config: ForkServerConfig, parent: ParentLink) -> NoReturn:
    # Listen before the slow imports: a core that needs a worker meanwhile only waits for the answer.
    listener = _listen(config.bind)
    parent.enter("importing")
    worker_main: WorkerMain = pkgutil.resolve_name(config.entry)()
    _check_threads()
    # A garbage collection would write to shared pages, which copies them.
    gc.freeze()
    return_freed_memory()
    forget_files()
    parent.started(config.bind)
    ForkServer(parent, listener, worker_main, config.max_workers).serve()


def _listen(path: str) -> socket.socket:
    Path(path).unlink(missing_ok=True)  # left by a fork server that was killed
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(path)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {path}: {error}; set TMPDIR or XDG_RUNTIME_DIR to another folder"
        ) from None
    listener.listen(MAX_CORES)
    listener.setblocking(False)
    return listener


def _check_threads() -> None:
    """Refuse to fork beside other threads: their locks would stay locked in each worker."""
    num_threads = len(os.listdir("/proc/self/task"))
    if num_threads > 1:
        raise ConfigError(
            f"{num_threads} threads run where workers are to be forked, and there may be one: an imported module "
            "starts threads; stop it, or use --distributed-executor-backend uni"
        )


def _ended_descriptor() -> int:
    """A descriptor that is readable when a child has ended, also in sandboxes without pidfds."""
    ended, wakeup = os.pipe()
    for descriptor in (ended, wakeup):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    return ended


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _open_descriptors() -> set[int]:
    folder = "/proc/self/fd"
    # The second look-up excludes the descriptor that was open for the listing.
    return {int(number) for number in os.listdir(folder) if os.path.lexists(f"{folder}/{number}")}
