"""A spare: a process that has imported everything and waits for its configuration.

Knows how to start and replace one; neither the child's role nor its taker.
"""

import asyncio
import logging
from collections.abc import Callable

from pyllm.supervision.child_process import ChildProcess, end
from pyllm.supervision.restarts import RestartBudget

# Replacements per minute of a spare that dies by itself; after that there is no spare before the next `fill`.
MAX_REPLACEMENTS = 3
# Seconds after `fill` until a spare is started: its imports would take a processor from requests that have waited for
# the process that has just become ready.
SPARE_DELAY = 1.0

logger = logging.getLogger(__name__)


class Spare:
    """One process that `spawn` starts, `delay` seconds after `fill`; it is watched from then on."""

    def __init__(self, spawn: Callable[[], ChildProcess], delay: float = SPARE_DELAY) -> None:
        self._spawn = spawn
        self._delay = delay
        self._waiting: ChildProcess | None = None
        self._budget = RestartBudget(MAX_REPLACEMENTS)
        self._timer: asyncio.TimerHandle | None = None

    def fill(self) -> None:
        """Start a spare after the delay, unless there is one by then."""
        self._fill_after(self._delay)

    def take(self) -> ChildProcess:
        """Take a process that is not configured yet: the spare, or a new one.

        There is no other spare before the next `fill`.
        """
        self._cancel()
        process, self._waiting = self._waiting, None
        return self._spawn_watched() if process is None or process.exited.done() else process

    def kill(self) -> list[ChildProcess]:
        """Send SIGKILL to the spare, if any; returns the processes that are still to end."""
        self._cancel()
        killed = [] if self._waiting is None else [self._waiting]
        self._waiting = None
        for process in killed:
            process.kill()
        return killed

    async def close(self) -> None:
        """Kill the spare and wait for its end."""
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
                process = self._waiting = self._spawn_watched()
            except OSError as error:
                self._retry(f"it could not be started: {error}")
            else:
                process.exited.add_done_callback(lambda _: self._replace(process))

    def _spawn_watched(self) -> ChildProcess:
        process = self._spawn()
        process.watch()
        return process

    def _replace(self, process: ChildProcess) -> None:
        if process is self._waiting:
            self._waiting = None
            self._retry(process.exit_summary())

    def _retry(self, reason: str) -> None:
        logger.warning("a spare: %s", reason)
        delay = self._budget.take(asyncio.get_running_loop().time())
        if delay is not None:
            self._fill_after(delay)
