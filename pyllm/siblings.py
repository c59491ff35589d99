"""The processes of one server, side by side: watched together, replaced where that can be done, ended in order.

Knows how siblings end and in which order they are told to; not what they are for.
"""

import asyncio
import logging
import signal
from collections import deque
from collections.abc import Callable
from typing import Any

from pyllm import supervisor

# What a core may take to end after its clients have gone, and an API process beyond its own drain.
STOP_GRACE = 10.0
# Of all siblings together, after which the server ends: what dies that often is not helped by a new one.
MAX_REPLACEMENTS = 5
REPLACEMENT_WINDOW = 60.0  # seconds
FIRST_DELAY = 0.1  # seconds before a second one within the window; twice as many before each further one

logger = logging.getLogger(__name__)


class Sibling:
    """One place in the server. With `replaceable`, a process that was killed there is followed by a new one.

    One that ends by itself is not: it had a reason, which would be the next one's, too.
    """

    def __init__(self, spawn: Callable[[], supervisor.Process], *, replaceable: bool = False) -> None:
        self._spawn = spawn
        self._replaceable = replaceable
        self.process = spawn()

    @property
    def can_be_replaced(self) -> bool:
        """Whether its process has ended in a way that another one may not."""
        return self._replaceable and self.process.exited.result() < 0

    def replace(self) -> None:
        """Start a new process in this place, and follow it."""
        self.process = self._spawn()
        self.process.watch()


async def supervise(
    groups: list[list[Sibling]],
    announcement: Callable[[str], str],
    ready_timeout: float,
    shutdown_timeout: float,
) -> int:
    """Watch siblings until a signal, or until one is lost that has no successor; gives the exit code.

    They are told to end group by group. `announcement` makes the line to print, of the address that the last serves.
    """
    siblings = [sibling for group in groups for sibling in group]
    signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, signals.put_nowait, number)
    for sibling in siblings:
        sibling.process.watch()
    stopped = asyncio.ensure_future(signals.get())
    ready = asyncio.gather(*(sibling.process.ready(ready_timeout) for sibling in siblings))
    await _first(ready, stopped)
    failure = ready.exception() if ready.done() else None
    if failure is None and ready.done():
        print(announcement(ready.result()[-1]), flush=True)
        failure = await _watch(siblings, stopped, ready_timeout)
    if failure is not None:
        logger.error("%s: pyllm ends", failure)
    ready.cancel()
    await asyncio.gather(ready, return_exceptions=True)
    ending = asyncio.ensure_future(_end(groups, shutdown_timeout + STOP_GRACE if failure is None else STOP_GRACE))
    stopped_again = asyncio.ensure_future(signals.get())
    await _first(ending, stopped_again)
    if not ending.done():
        logger.warning("told twice to stop: ending at once")
        for sibling in siblings:
            sibling.process.signal(signal.SIGKILL)
    await ending
    return 0 if failure is None else 1


async def _watch(
    siblings: list[Sibling], stopped: "asyncio.Future[signal.Signals]", ready_timeout: float
) -> BaseException | None:
    """Replace what can be replaced until the signal; the reason, if that cannot be."""
    clock = asyncio.get_running_loop().time
    replacements: deque[float] = deque()
    starting: set[asyncio.Task[None]] = set()
    try:
        while True:
            await _first(stopped, *(sibling.process.exited for sibling in siblings))
            lost = [sibling for sibling in siblings if sibling.process.exited.done()]
            if stopped.done():
                return next((sibling.process.error() for sibling in lost), None)
            while replacements and replacements[0] < clock() - REPLACEMENT_WINDOW:
                replacements.popleft()
            for sibling in lost:
                error = sibling.process.error()
                if not sibling.can_be_replaced or len(replacements) == MAX_REPLACEMENTS:
                    return error
                delay = FIRST_DELAY * 2 ** (len(replacements) - 1) if replacements else 0.0
                await asyncio.wait({stopped}, timeout=delay)
                logger.error("%s: another one takes its place", error)
                sibling.replace()
                replacements.append(clock())
                task = asyncio.create_task(_end_if_late(sibling.process, ready_timeout))
                starting.add(task)
                task.add_done_callback(starting.discard)
    finally:
        for task in starting:
            task.cancel()


async def _end_if_late(process: supervisor.Process, ready_timeout: float) -> None:
    """Kill a process that does not become ready in time, which is then lost as any other."""
    either: set[asyncio.Future[Any]] = {process.started, process.exited}
    await asyncio.wait(either, timeout=ready_timeout, return_when=asyncio.FIRST_COMPLETED)
    if not process.started.done():
        process.signal(signal.SIGKILL)


async def _first(*futures: asyncio.Future[Any]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


async def _end(groups: list[list[Sibling]], grace: float) -> None:
    for group in groups:
        await asyncio.gather(*(sibling.process.stop(grace) for sibling in group))
