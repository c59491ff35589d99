"""What goes wrong: processes that die or stand still, exceptions in a worker, and memory that somebody else takes.

Knows processes by title and age, and nothing of what they do.
"""

import contextlib
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil

from pyllm.supervision.parent_link import SPARE_TITLE
from tests.e2e.titles import API, CORE, STATE, SUPERVISOR, WORKER, find

APIS = (API, "pyllm::api-1")

SHORT_PAUSE = 1.0  # seconds; below what counts as silence
LONG_PAUSE = 8.0  # far beyond it
HOG_SECONDS = 5.0
HOG_BYTES = 2 << 30
HOG_LEAVES = 6 << 30  # for everybody else; a hog that could not leave that much takes nothing


class Faults:
    """Does one fault after another to a server's processes. `flag` is what requests tell the faulty processor of."""

    def __init__(self, supervisor: int, flag: Path, seed: int) -> None:
        self.counted: Counter[str] = Counter()
        self._supervisor = supervisor
        self._flag = flag
        self._choose = random.Random(seed)
        self._kinds: list[tuple[int, Callable[[], str]]] = [
            (4, lambda: self._send(signal.SIGKILL, WORKER)),
            (3, lambda: self._send(signal.SIGKILL, CORE)),
            (2, lambda: self._send(signal.SIGKILL, self._choose.choice(APIS))),
            (1, lambda: self._send(signal.SIGKILL, STATE)),
            (1, lambda: self._send(signal.SIGKILL, SPARE_TITLE)),
            (1, lambda: self._send(signal.SIGKILL, WORKER, CORE)),
            (1, lambda: self._send(signal.SIGSEGV, self._choose.choice((WORKER, CORE, *APIS)))),
            (1, lambda: self._send(signal.SIGABRT, self._choose.choice((WORKER, CORE)))),
            (2, lambda: self._pause(SHORT_PAUSE, self._any())),
            (1, lambda: self._pause(LONG_PAUSE, self._any())),
            (1, lambda: self._raise("exception")),
            (1, lambda: self._raise("exit")),
            (1, self._hog),
        ]

    def one(self) -> None:
        """Do one fault, drawn by weight; what is not there just now is not faulted, nor counted."""
        weights = [weight for weight, _ in self._kinds]
        (fault,) = self._choose.choices([fault for _, fault in self._kinds], weights)
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if name := fault():
                self.counted[name] += 1

    def _any(self) -> str:
        return self._choose.choice((SUPERVISOR, WORKER, CORE, *APIS, STATE))

    def _send(self, number: signal.Signals, *titles: str) -> str:
        found = [find(self._supervisor, title) for title in titles]
        if not all(found):
            return ""
        for processes in found:
            self._choose.choice(processes).send_signal(number)
        return f"{number.name} {' and '.join(titles)}"

    def _pause(self, seconds: float, title: str) -> str:
        processes = find(self._supervisor, title)
        if not processes:
            return ""
        process = processes[0]
        process.send_signal(signal.SIGSTOP)
        try:
            psutil.wait_procs([process], timeout=seconds)  # It may be ended for its silence.
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)
        return f"SIGSTOP {seconds:g} s {title}"

    def _raise(self, kind: str) -> str:
        self._flag.write_text(kind)
        end = time.monotonic() + HOG_SECONDS
        while self._flag.exists() and time.monotonic() < end:
            time.sleep(0.01)
        if self._flag.exists():  # No request that looks at it came to a step meanwhile.
            self._flag.unlink(missing_ok=True)
            return ""
        return f"{kind} {WORKER}"

    def _hog(self) -> str:
        size = min(HOG_BYTES, psutil.virtual_memory().available - HOG_LEAVES)
        if size <= 0:
            return ""
        code = f"import time; memory = bytearray(b'1') * {size}; time.sleep({HOG_SECONDS})"
        with subprocess.Popen([sys.executable, "-c", code]) as hog, contextlib.suppress(subprocess.TimeoutExpired):
            hog.wait(3 * HOG_SECONDS)
        return "memory hog"
