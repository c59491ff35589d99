"""The processes of one server: started together, kept until a signal, ended in order.

Knows the order, but neither the work of the processes nor their supervision (`supervision/supervised_process.py`).
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Collection, Sequence

from pyllm.supervision.start_progress import show_progress
from pyllm.supervision.supervised_process import OnLost, Supervised, start_state

# Seconds for a core to end after its clients have gone, and for an API process beyond its own drain.
STOP_GRACE = 10.0
# Seconds for all processes to end when one is lost for good, enough to end streams with an error.
LOST_GRACE = 3.0

logger = logging.getLogger(__name__)

# The cause of a server's end: a signal, or an error. None: its work is done, or later, all processes have ended.
Event = signal.Signals | BaseException | None


async def supervise(
    groups: Sequence[Sequence[Supervised]],
    announcement: Callable[[list[str]], str],
    shutdown_timeout: float,
    on_ending: Callable[[], None] = lambda: None,
    work: Callable[[], Awaitable[None]] | None = None,
    *,
    replicas: Collection[Supervised] = (),
) -> None:
    """Start all and keep them until a signal, then end them group by group; after a second signal, at once.

    The signals are SIGTERM, SIGINT, and SIGHUP from a closed terminal, which counts once.

    One of `replicas`, which do the same work, is enough: all processes end when the last replica is lost.

    `announcement` makes the line to print once all are ready, from the addresses that they serve, in order; an empty
    line is not printed. With `work` they also end when it is done; it is cancelled if they end before.
    `on_ending` is called while the first group ends, once none of it is replaced any more.

    Raises:
        PyllmError: a process did not start, or was lost for good; all have ended.
    """
    processes = [process for group in groups for process in group]
    events: asyncio.Queue[Event] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
            asyncio.get_running_loop().add_signal_handler(number, events.put_nowait, number)
    lose_replica = last_of(len(replicas), events.put_nowait)
    on_lost = [lose_replica if process in replicas else events.put_nowait for process in processes]
    starting = asyncio.create_task(_start(processes, on_lost, announcement, events, work))
    first = await events.get()
    starting.cancel()
    for process in processes:
        process.expect_end()
    failure = first if isinstance(first, BaseException) else None
    if failure is not None:
        _give_up(processes, failure)
    ending = asyncio.create_task(_end(groups, LOST_GRACE if failure else shutdown_timeout + STOP_GRACE, on_ending))
    ending.add_done_callback(lambda _: events.put_nowait(None))
    while (event := await events.get()) is not None:
        if isinstance(event, BaseException):
            # The others cannot end in order: a process that needs the lost one would wait for it.
            failure = failure or event
            _give_up(processes, event)
            asyncio.get_running_loop().call_later(LOST_GRACE, _kill, processes)
        elif event != signal.SIGHUP:  # A closed terminal and its shell each send SIGHUP.
            logger.warning("second signal to stop: ending at once")
            _kill(processes)
    ending.result()
    if failure is not None:
        raise failure


def last_of(count: int, on_lost: OnLost) -> OnLost:
    """A callback for each of `count` replicas; calls `on_lost` only for the last loss."""
    left = count

    def lose(reason: BaseException) -> None:
        nonlocal left
        left -= 1
        if left > 0:
            logger.error("%s: the %d of %d that are left go on", reason, left, count)
        else:
            on_lost(reason)

    return lose


async def _start(
    processes: Sequence[Supervised],
    on_lost: list[OnLost],
    announcement: Callable[[list[str]], str],
    events: asyncio.Queue[Event],
    work: Callable[[], Awaitable[None]] | None,
) -> None:
    try:
        for process in processes:
            process.spawn()
        showing = asyncio.create_task(show_progress(lambda: start_state(processes)))
        try:
            starts = (process.start(lose) for process, lose in zip(processes, on_lost, strict=True))
            addresses = await asyncio.gather(*starts)
        finally:
            showing.cancel()
            await asyncio.wait({showing})
        if line := announcement(addresses):
            _announce(line)
        for process in processes:
            process.stand_by()
        if work is not None:
            await work()
            events.put_nowait(None)
    except Exception as error:  # noqa: BLE001 - after any error all started processes must end
        events.put_nowait(error)


def _announce(line: str) -> None:
    try:
        print(line, flush=True)
    except OSError as error:  # A server without a reader of stdout still serves.
        logger.warning("stdout cannot be written to: %s", error.strerror)
        with open(os.devnull, "wb") as nothing:  # The rest of the buffer would fail again when this process ends.
            os.dup2(nothing.fileno(), sys.stdout.fileno())


def _give_up(processes: Sequence[Supervised], failure: BaseException) -> None:
    logger.error("%s: pyllm ends", failure)
    for process in processes:
        process.give_up(str(failure))


def _kill(processes: Sequence[Supervised]) -> None:
    for process in processes:
        process.kill()


async def _end(groups: Sequence[Sequence[Supervised]], grace: float, on_ending: Callable[[], None]) -> None:
    for number, group in enumerate(groups):
        stopping = asyncio.gather(*(process.stop(grace) for process in group))
        if number == 0:
            await asyncio.sleep(0)  # No process of the group is replaced after that.
            on_ending()
        await stopping
