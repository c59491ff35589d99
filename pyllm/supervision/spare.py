"""A spare: a process that has imported everything and waits for its configuration.

Knows how to start and replace one; not the child's role, nor who takes it.
"""

import asyncio
import logging
from collections.abc import Callable

from pyllm.supervision.child_process import ChildProcess, end
from pyllm.supervision.restart_budget import RestartBudget

# A spare that dies by itself is replaced so many times a minute; then there is none before the next `fill`.
MAX_REPLACEMENTS = 3
# Seconds after `fill` until a spare is started: imports take a processor, which those want now who have waited for what
# has just become ready.
SPARE_DELAY = 1.0

logger = logging.getLogger(__name__)


class Spare:
    """One process that `spawn` starts and watches, `delay` seconds after `fill`."""

    def __init__(self, spawn: Callable[[], ChildProcess], delay: float = SPARE_DELAY) -> None:
        self._spawn = spawn
        self._delay = delay
        self._waiting: ChildProcess | None = None
        self._budget = RestartBudget(MAX_REPLACEMENTS)
        self._timer: asyncio.TimerHandle | None = None

    def fill(self) -> None:
        """Start one, a little later, if there is none by then."""
        self._fill_after(self._delay)

    def take(self) -> ChildProcess:
        """A process that is not configured yet: the one that stands by, or a new one.

        None stands by before the next `fill`.
        """
        self._cancel()
        process, self._waiting = self._waiting, None
        return self._spawn() if process is None or process.exited.done() else process

    def kill(self) -> list[ChildProcess]:
        """SIGKILL to the one that stands by, if any; gives what is yet to end."""
        self._cancel()
        killed = [] if self._waiting is None else [self._waiting]
        self._waiting = None
        for process in killed:
            process.kill()
        return killed

    async def close(self) -> None:
        """As `kill`, and wait for the end."""
        await end(self.kill())

    def _fill_after(self, delay: float) -> None:
        self._cancel()
        self._timer = asyncio.get_running_loop().call_later(delay, self._start)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _start(self) -> None:
        if self._waiting is None:
            try:
                process = self._waiting = self._spawn()
            except OSError as error:
                self._retry(f"it could not be started: {error}")
            else:
                process.exited.add_done_callback(lambda _: self._replace(process))

    def _replace(self, process: ChildProcess) -> None:
        if process is self._waiting:
            self._waiting = None
            self._retry(process.exit_summary())

    def _retry(self, reason: str) -> None:
        logger.warning("a spare: %s", reason)
        delay = self._budget.take(asyncio.get_running_loop().time())
        if delay is not None:
            self._fill_after(delay)
