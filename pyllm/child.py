"""The child's side of supervision: title, heartbeats to the parent, and an end when the parent ends.

Knows no role; `supervisor.py` is the parent's side. The connection is a socket pair that carries `ChildMessage`s up;
its end of file is the parent's death.
"""

import ctypes
import logging
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection

import msgspec
from setproctitle import setproctitle

from pyllm.errors import PyllmError
from pyllm.messages import ChildMessage, Failed, Heartbeat, Started

HEARTBEAT_INTERVAL = 0.5  # seconds
ORPHANED_EXIT_CODE = 70
SPARE_TITLE = "pyllm::spare"
OUT_OF_MEMORY_EXIT_CODE = 4  # a worker's device, or the host, had no memory left
_PR_SET_PDEATHSIG = 1

logger = logging.getLogger(__name__)


class Child:
    """What a process tells its parent. `stage` and `step` are set by the process and sent at 2 Hz by a thread."""

    def __init__(self, connection: Connection, stage: str) -> None:
        self.stage = stage
        self.step = -1
        self._connection = connection
        self._lock = threading.Lock()
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def enter(self, stage: str) -> None:
        """Name what the process does from now on, and tell the parent at once."""
        self.stage = stage
        self._send(Heartbeat(stage, self.step))

    def started(self, address: str = "") -> None:
        """Report that the process does its work from now on."""
        self.stage = "ready"
        self._send(Started(address))

    def failed(self, message: str) -> None:
        """Report why the process is about to end."""
        self._send(Failed(self.stage, message))

    def run(self, work: Callable[[], int]) -> int:
        """Do the process's work and give its exit code: 1 for an error, which the parent and the log are told."""
        try:
            return work()
        except PyllmError as error:
            logger.error("ends while %s: %s", self.stage, error)
            self.failed(str(error))
        except Exception as error:
            logger.exception("ends while %s", self.stage)
            self.failed(f"{type(error).__name__}: {error}")
        return 1

    def _send(self, message: ChildMessage) -> None:
        with self._lock:
            try:
                self._connection.send_bytes(msgspec.msgpack.encode(message))
            except OSError:
                os._exit(ORPHANED_EXIT_CODE)

    def _beat(self) -> None:
        while not self._connection.poll(HEARTBEAT_INTERVAL):
            self._send(Heartbeat(self.stage, self.step))
        os._exit(ORPHANED_EXIT_CODE)  # The parent never writes: what became readable is its end.


def attach(connection: Connection, title: str, parent_death_signal: bool = True) -> Child:
    """Make this process a supervised child; call it first thing in the main thread.

    `parent_death_signal` asks the kernel for SIGKILL when the *thread* that started this process ends, so it must be
    off where that was not the parent's main thread; the connection's end of file then does alone.
    """
    setproctitle(title)
    if parent_death_signal:
        die_with_parent()
    return Child(connection, "starting")


def die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the *thread* that started this process ends, which must be one that stays."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def await_configuration(connection: Connection) -> bytes:
    """Wait for what the parent sends first; this process is a spare meanwhile, and ends with its parent."""
    try:
        return connection.recv_bytes()
    except (EOFError, OSError):
        os._exit(ORPHANED_EXIT_CODE)
