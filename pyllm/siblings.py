"""The processes of one server, side by side: started together, kept until a signal, ended in order.

Knows in which order they are told to end; not what they are for, nor how each is kept (`place.py`).
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable

from pyllm.place import Place

# What a core may take to end after its clients have gone, and an API process beyond its own drain.
STOP_GRACE = 10.0
# What all get together when one is lost for good: streams that cannot go on are told so, and not more.
LOST_GRACE = 3.0

logger = logging.getLogger(__name__)

# What ends a server: a signal, or the reason why it cannot go on. None: it has ended.
Event = signal.Signals | BaseException | None


async def supervise(
    groups: list[list[Place]],
    announcement: Callable[[list[str]], str],
    shutdown_timeout: float,
    on_ending: Callable[[], None] = lambda: None,
) -> None:
    """Start all and keep them until a signal, then end them group by group; after a second signal, at once.

    `announcement` makes the line to print once all are ready, of the addresses that they serve, in their order.
    `on_ending` is called as the first group is told to end: once none of it is replaced any more.

    Raises:
        PyllmError: one did not start, or was lost for good; all have ended.
    """
    places = [place for group in groups for place in group]
    events: asyncio.Queue[Event] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, events.put_nowait, number)
    starting = asyncio.create_task(_start(places, announcement, events))
    first = await events.get()
    starting.cancel()
    for place in places:
        place.expect_end()
    failure = first if isinstance(first, BaseException) else None
    if failure is not None:
        _give_up(places, failure)
    ending = asyncio.create_task(_end(groups, LOST_GRACE if failure else shutdown_timeout + STOP_GRACE, on_ending))
    ending.add_done_callback(lambda _: events.put_nowait(None))
    while (event := await events.get()) is not None:
        if isinstance(event, BaseException):
            # What is still to end cannot do so in order: who needs the lost one would wait for it.
            failure = failure or event
            _give_up(places, event)
            asyncio.get_running_loop().call_later(LOST_GRACE, _kill, places)
        else:
            logger.warning("told twice to stop: ending at once")
            _kill(places)
    ending.result()
    if failure is not None:
        raise failure


async def _start(places: list[Place], announcement: Callable[[list[str]], str], events: asyncio.Queue[Event]) -> None:
    try:
        for place in places:
            place.spawn()
        addresses = await asyncio.gather(*(place.start(events.put_nowait) for place in places))
    except Exception as error:  # noqa: BLE001 - whatever it is, all that has been started has to end
        events.put_nowait(error)
        return
    _announce(announcement(addresses))
    for place in places:
        place.stand_by()


def _announce(line: str) -> None:
    try:
        print(line, flush=True)
    except OSError as error:  # Nobody reads what we say: that is no reason not to do it.
        logger.warning("stdout cannot be written to: %s", error.strerror)
        with open(os.devnull, "wb") as nothing:  # What is left in its buffer would fail again when this process ends.
            os.dup2(nothing.fileno(), sys.stdout.fileno())


def _give_up(places: list[Place], failure: BaseException) -> None:
    logger.error("%s: pyllm ends", failure)
    for place in places:
        place.give_up(str(failure))


def _kill(places: list[Place]) -> None:
    for place in places:
        place.kill()


async def _end(groups: list[list[Place]], grace: float, on_ending: Callable[[], None]) -> None:
    for number, group in enumerate(groups):
        stopping = asyncio.gather(*(place.stop(grace) for place in group))
        if number == 0:
            await asyncio.sleep(0)  # None of them is replaced after that.
            on_ending()
        await stopping
