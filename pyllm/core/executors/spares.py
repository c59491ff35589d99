"""Worker processes that stand by: everything is imported there, and nothing is configured.

Knows how many there should be. Does not know ranks: whoever takes a worker makes it one.
"""

import asyncio
import signal
from collections.abc import Callable

from pyllm.restart_budget import RestartBudget
from pyllm.supervisor import KILL_TIMEOUT, Process

# Spares that die by themselves are replaced so many times a minute; then there are none before the next `fill`.
MAX_REPLACEMENTS = 3


class Spares:
    """`count` workers that `spawn` starts, 0 for none, `delay` seconds after `fill`."""

    def __init__(self, spawn: Callable[[], Process], count: int, delay: float) -> None:
        self._spawn = spawn
        self._count = count
        self._delay = delay
        self._waiting: list[Process] = []
        self._budget = RestartBudget(MAX_REPLACEMENTS)
        self._timer: asyncio.TimerHandle | None = None

    def fill(self) -> None:
        """Start as many as there are too few, a little later: imports take a processor, which is wanted now."""
        self._fill_after(self._delay)

    def adopt(self, processes: list[Process]) -> None:
        """Watch workers that were started before there was an event loop, and have them stand by."""
        for process in processes:
            process.watch()
            self._stand_by(process)

    def take(self) -> Process:
        """A worker that is not configured yet: the spare that has waited longest, or a new one.

        No further spare is started before the next `fill`.
        """
        self._cancel()
        return self._waiting.pop(0) if self._waiting else self._spawn()

    async def close(self) -> None:
        """End them all, and start no more."""
        self._count = 0
        self._cancel()
        ended, self._waiting = self._waiting, []
        await end(ended)

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
                delay = self._budget.take(asyncio.get_running_loop().time())
                if delay is not None:
                    self._fill_after(delay)

        return replace


async def end(processes: list[Process]) -> list[Process]:
    """SIGKILL: they hold nothing that would have to be finished. Gives those that do not even end then."""
    for process in processes:
        process.signal(signal.SIGKILL)
    if processes:
        await asyncio.wait([process.exited for process in processes], timeout=KILL_TIMEOUT)
    return [process for process in processes if not process.exited.done()]
