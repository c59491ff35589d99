"""One thread, shared fairly: who has had little of it goes before who has had much.

Knows seconds of its work, but not what the work is.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

# Seconds that the first work of a new party is taken to last: more than that of who is known to ask for little.
_UNKNOWN = 0.01


@dataclass(slots=True, eq=False)
class Share:
    """What one party has had of a `FairThread`, in virtual seconds. The thread writes it."""

    finish: float = 0.0  # when all that it asked for is done
    cost: float | None = None  # what its next piece of work may take, going by the last ones; None: there were none


@dataclass(slots=True, order=True)
class _Work:
    finish: float
    number: int  # what was asked for first comes first where the rest is equal
    start: float = field(compare=False)
    share: Share = field(compare=False)
    task: Callable[[], None] = field(compare=False)


class FairThread:
    """Weighted fair queueing, with equal weights, over pieces of work that cannot be interrupted.

    Next is what would finish first if the thread were shared evenly among all who wait, each piece taken to be as long
    as its party's last ones. So who is known to ask for less than its share waits for the piece that is being done and
    for others like itself, whatever else waits; who asks for more gets what is left, which is an even share at least.

    `clock` gives the seconds that the calling thread has worked.
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._pool = ThreadPoolExecutor(1, name)
        self._arrived: SimpleQueue[tuple[Share, Callable[[], None]]] = SimpleQueue()
        # What follows is the thread's own.
        self._waiting: list[_Work] = []  # a heap
        self._numbers = count()
        self._now = 0.0  # virtual seconds: when what is being done would have begun

    def submit(self, share: Share, work: Callable[[], T]) -> "Future[T]":
        """Have some work done, as far as its share allows.

        Raises:
            RuntimeError: the thread was closed.
        """
        future = Future[T]()
        self.run(share, lambda: settle(future, work))
        return future

    def run(self, share: Share, task: Callable[[], None]) -> None:
        """The same for what raises nothing and gives nothing.

        Raises:
            RuntimeError: the thread was closed.
        """
        self._arrived.put((share, task))
        self._pool.submit(self._do_next)

    def close(self) -> None:
        """End the thread after what it does, without waiting for it. What still waits is never done."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _do_next(self) -> None:
        self._admit()
        work = heappop(self._waiting)
        self._now = max(self._now, work.start)
        began = self._clock()
        work.task()
        seconds, share = self._clock() - began, work.share
        share.finish += seconds - (work.finish - work.start)
        # One cheap piece among dear ones does not make the next one cheap.
        share.cost = seconds if share.cost is None else max(seconds, share.cost / 2)

    def _admit(self) -> None:
        with suppress(Empty):
            while True:
                share, task = self._arrived.get_nowait()
                start = max(self._now, share.finish)
                share.finish = start + (_UNKNOWN if share.cost is None else share.cost)
                heappush(self._waiting, _Work(share.finish, next(self._numbers), start, share, task))


def settle(future: "Future[T]", work: Callable[[], T]) -> None:
    """Give a future what some work gives or raises, unless it was given something else meanwhile."""
    try:
        result: Any = work()
    except BaseException as error:  # noqa: BLE001 - it is for whoever waits
        with suppress(InvalidStateError):
            future.set_exception(error)
    else:
        with suppress(InvalidStateError):
            future.set_result(result)
