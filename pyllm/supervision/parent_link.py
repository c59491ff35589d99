"""The child's side of supervision: its title, heartbeats to and from the parent, and its end with the parent.

The connection is a socket pair. The parent sends the configuration, as one frame, and heartbeats; the child sends
`ChildMessage`s. End of file is the parent's death. Knows no role; `supervision/child_process.py` is the parent's side.
"""

import ctypes
import faulthandler
import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import msgspec
from setproctitle import setproctitle

from pyllm.errors import ConfigError, GivenUpError, PyllmError
from pyllm.supervision.log_level import set_log_level
from pyllm.wire.heartbeat import HEARTBEAT_INTERVAL
from pyllm.wire.messages import Heartbeat, Restarts
from pyllm.wire.supervision_messages import MAX_ENDED, ChildMessage, Failed, Kept, ReloadAsked, Started

# Seconds without a pulse after which an event loop counts as hanging.
PULSE_PATIENCE = 10.0
# Characters of a reason, and requests in a message: a message that fits into the socket never blocks the sender.
MAX_REASON = 4000
MAX_ENDED_AT_ONCE = 64
SPARE_TITLE = "pyllm::spare"
# The process failed for a reason that a successor would meet, too.
FINAL_EXIT_CODE = 3
ORPHANED_EXIT_CODE = 70
OUT_OF_MEMORY_EXIT_CODE = 4  # a worker's device, or the host, had no memory left
_PR_SET_PDEATHSIG = 1

logger = logging.getLogger(__name__)


class ParentLink:
    """The link to the parent. `stage` and `step` are set by the process and sent at 2 Hz.

    A thread sends them (`beat_in_a_thread`), or the process itself (`beat`, `listen`). `given_up` is empty until the
    parent reports why a process that this one needs will not come back. `restarts` are those in the last heartbeat,
    `news` the last ones sent, a new object each time; `on_news` is called with each, maybe in another thread.
    `blamed_on_request` is set by `set_blamed_on_request`.
    """

    def __init__(self, connection: Connection, stage: str, pulse_patience: float) -> None:
        self.stage = stage
        self.step = -1
        self.progress = 0.0
        self.given_up = ""
        self.restarts: tuple[Restarts, ...] = ()
        self.news = b""
        self.on_news: Callable[[], None] = lambda: None
        self.blamed_on_request = False
        self._unsent = Kept()
        self._connection = connection
        self._lock = threading.Lock()
        self._writable = select.poll()
        self._writable.register(connection.fileno(), select.POLLOUT)
        # Counted in our own ticks, not by the clock: a process that was stopped must not blame its parent.
        self._ticks_unheard = 0
        self._ticks_unpulsed: int | None = None
        self._pulse_patience = pulse_patience

    def fileno(self) -> int:
        """A descriptor that is readable when there is a heartbeat for `listen`."""
        return self._connection.fileno()

    @property
    def parent_silence(self) -> float:
        """Seconds since the parent's last heartbeat."""
        return self._ticks_unheard * HEARTBEAT_INTERVAL

    def pulse(self) -> None:
        """Report that the event loop runs. After the first pulse, the parent ends a process without one for 10 s."""
        self._ticks_unpulsed = 0

    def enter(self, stage: str) -> None:
        """Enter a stage, and tell the parent at once."""
        self.stage = stage
        self._send_state()

    def advance(self, progress: float) -> None:
        """Note the share of the model that is loaded, for the next heartbeat."""
        self.progress = progress

    def set_blamed_on_request(self, blamed_on_request: bool) -> None:
        """Tell the parent, at once, whether an end of this process from now on is the fault of one request."""
        self.blamed_on_request = blamed_on_request
        self._send_state()

    def started(self, address: str = "") -> None:
        """Report that the process is ready, and the address it serves."""
        self.stage = "ready"
        self._send(Started(address), patience=1.0)

    def failed(self, message: str, is_setting: bool = False) -> None:
        """Report why the process is about to end, and whether a setting is at fault."""
        self._send(Failed(self.stage, message[:MAX_REASON], is_setting), patience=1.0)

    def keep(self, kept: Kept) -> None:
        """Give the parent state for the successor of this process: now, or once the parent reads again."""
        with self._lock:
            self._unsent = _merged(self._unsent, kept)
            self._send_unsent()

    def ask_reload(self) -> None:
        """Ask the parent to read keys and certificates again, and to send them to all of its API processes."""
        self._send(ReloadAsked(), patience=1.0)

    def beat(self) -> None:
        """Send a heartbeat to the parent; call it every `HEARTBEAT_INTERVAL`."""
        self._ticks_unheard += 1
        if self._has_pulse():
            self._send_state()

    def listen(self) -> None:
        """Read the parent's next heartbeat, and take over its log level; ends this process if the parent has ended."""
        try:
            heartbeat = msgspec.msgpack.decode(self._connection.recv_bytes(), type=Heartbeat)
        except (EOFError, OSError):
            os._exit(ORPHANED_EXIT_CODE)
        self._ticks_unheard = 0
        self.given_up = heartbeat.reason
        self.restarts = heartbeat.restarts
        if heartbeat.news:
            self.news = heartbeat.news
            self.on_news()
        if heartbeat.log_level:
            set_log_level(heartbeat.log_level)

    def beat_in_a_thread(self) -> None:
        """Call `beat` and `listen` in a thread from now on."""
        threading.Thread(target=self._beat_forever, name="heartbeat", daemon=True).start()

    def run(self, work: Callable[[], int]) -> int:
        """Do the process's work and return its exit code: 1 or 3 for an error, which goes to the parent and the log."""
        try:
            return work()
        except PyllmError as error:
            logger.error("failed while %s: %s", self.stage, error)
            self.failed(str(error), isinstance(error, ConfigError))
            return FINAL_EXIT_CODE if isinstance(error, ConfigError | GivenUpError) else 1
        except Exception as error:
            logger.exception("failed while %s", self.stage)
            self.failed(f"{type(error).__name__}: {error}")
            return 1

    def _send_state(self) -> None:
        with self._lock:  # The state is read under the lock, so that a thread never sends an older state last.
            self._send_locked(self._state())
            self._send_unsent()

    def _state(self) -> Heartbeat:
        return Heartbeat(self.stage, self.step, blamed_on_request=self.blamed_on_request, progress=self.progress)

    def _send_unsent(self) -> None:
        while self._unsent != Kept():
            next_part = msgspec.structs.replace(self._unsent, ended=self._unsent.ended[:MAX_ENDED_AT_ONCE])
            if not self._send_locked(next_part):
                return
            self._unsent = Kept(ended=self._unsent.ended[MAX_ENDED_AT_ONCE:])

    def _send(self, message: ChildMessage, patience: float = 0.0) -> None:
        with self._lock:
            self._send_locked(message, patience)

    def _send_locked(self, message: ChildMessage, patience: float = 0.0) -> bool:
        """Send a message, or drop it if the parent does not read: a stopped parent must not block this process."""
        if not self._writable.poll(patience * 1000):
            return False
        try:
            self._connection.send_bytes(msgspec.msgpack.encode(message))
        except OSError:
            os._exit(ORPHANED_EXIT_CODE)
        return True

    def _beat_forever(self) -> None:
        next_beat = time.monotonic()
        while True:
            now = time.monotonic()
            if now >= next_beat:
                next_beat = now + HEARTBEAT_INTERVAL
                self.beat()
            if self._connection.poll(max(0.0, next_beat - time.monotonic())):
                self.listen()

    def _has_pulse(self) -> bool:
        if self._ticks_unpulsed is None:
            return True
        self._ticks_unpulsed += 1
        return self._ticks_unpulsed * HEARTBEAT_INTERVAL <= self._pulse_patience


def _merged(earlier: Kept, later: Kept) -> Kept:
    """Two messages as one: ended requests of both, as many as are kept, and the later of all other fields."""
    return Kept(
        earlier.settings if later.settings is None else later.settings,
        (earlier.ended + later.ended)[-MAX_ENDED:],
        earlier.workers if later.workers is None else later.workers,
        earlier.cores if later.cores is None else later.cores,
        earlier.adapters if later.adapters is None else later.adapters,
        earlier.catalogue if later.catalogue is None else later.catalogue,
    )


def attach(
    connection: Connection, title: str, pulse_patience: float = PULSE_PATIENCE, in_a_thread: bool = True
) -> ParentLink:
    """Make this process a supervised child that has its configuration; call it in the main thread.

    The process ends with the connection, or earlier by `die_with_parent`. Unless `in_a_thread`, the process must call
    `beat` and `listen` itself.
    """
    setproctitle(title)
    # Write the stacks in a crash, or when the parent asks because this process hangs.
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    parent = ParentLink(connection, "starting", pulse_patience)
    if in_a_thread:
        parent.beat_in_a_thread()
    return parent


def die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the *thread* that started this process ends; that thread must live on."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def keep_exit_codes() -> None:
    """Make the kernel keep exit codes of this process's children. A parent that ignores SIGCHLD passes this on, and
    then every child would seem to have ended with code 0.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def await_configuration(connection: Connection) -> bytes:
    """Wait for the parent's first message; this process is a spare meanwhile, and ends with its parent."""
    try:
        return connection.recv_bytes()
    except (EOFError, OSError):
        os._exit(ORPHANED_EXIT_CODE)
