"""Processes that stand by: everything is imported there, and nothing is configured.

Knows how many there should be. Does not know what they are for: whoever takes one tells it.
"""

import asyncio
import logging
from collections.abc import Callable

from pyllm.restart_budget import RestartBudget
from pyllm.supervisor import KILL_TIMEOUT, Process

# Spares that die by themselves are replaced so many times a minute; then there are none before the next `fill`.
MAX_REPLACEMENTS = 3
# Seconds after `fill` until a spare is started: imports take a processor, which those want now who have waited for what
# has just become ready.
SPARE_DELAY = 1.0

logger = logging.getLogger(__name__)


class Spares:
    """`count` processes that `spawn` starts and watches, 0 for none, `delay` seconds after `fill`."""

    def __init__(self, spawn: Callable[[], Process], count: int, delay: float = SPARE_DELAY) -> None:
        self._spawn = spawn
        self._count = count
        self._delay = delay
        self._waiting: list[Process] = []
        self._budget = RestartBudget(MAX_REPLACEMENTS)
        self._timer: asyncio.TimerHandle | None = None

    def fill(self) -> None:
        """Start as many as there are too few, a little later."""
        self._fill_after(self._delay)

    def adopt(self, processes: list[Process]) -> None:
        """Watch processes that were started before there was an event loop, and have them stand by."""
        for process in processes:
            process.watch()
            self._stand_by(process)

    def take(self) -> Process:
        """A process that is not configured yet: the spare that has waited longest, or a new one.

        No further spare is started before the next `fill`.
        """
        self._cancel()
        while self._waiting:
            process = self._waiting.pop(0)
            if not process.exited.done():
                return process
        return self._spawn()

    def kill(self) -> list[Process]:
        """SIGKILL to them all, and start no more; gives those that are yet to end."""
        self._count = 0
        self._cancel()
        killed, self._waiting = self._waiting, []
        for process in killed:
            process.kill()
        return killed

    async def close(self) -> None:
        """As `kill`, and wait for their ends."""
        await end(self.kill())

    def _fill_after(self, delay: float) -> None:
        self._cancel()
        self._timer = asyncio.get_running_loop().call_later(delay, self._start)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _start(self) -> None:
        while len(self._waiting) < self._count:
            self._stand_by(self._spawn())

    def _stand_by(self, process: Process) -> None:
        self._waiting.append(process)
        process.exited.add_done_callback(self._replacing(process))

    def _replacing(self, process: Process) -> Callable[[object], None]:
        def replace(_: object) -> None:
            if process in self._waiting:
                self._waiting.remove(process)
                logger.warning("a spare: %s", process.obituary())
                delay = self._budget.take(asyncio.get_running_loop().time())
                if delay is not None:
                    self._fill_after(delay)

        return replace


async def end(processes: list[Process]) -> list[Process]:
    """SIGKILL: they hold nothing that would have to be finished. Gives those that do not even end then."""
    for process in processes:
        process.kill()
    if processes:
        await asyncio.wait([process.exited for process in processes], timeout=KILL_TIMEOUT)
    return [process for process in processes if not process.exited.done()]
