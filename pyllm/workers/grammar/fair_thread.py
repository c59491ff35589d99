"""A thread with a fair queue: parties that used less of its time go first.

Measures the seconds of each piece of work. Does not know what the work is.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import count
from queue import Empty, SimpleQueue
from typing import TypeVar

T = TypeVar("T")

# Estimated seconds of a new party's first piece: more than the pieces of a party that is known to be cheap.
_UNKNOWN = 0.01


@dataclass(slots=True, eq=False)
class Share:
    """One party's use of a `FairThread`, in virtual seconds. The thread writes it."""

    finish: float = 0.0  # of its last piece
    cost: float | None = None  # estimate for its next piece, from earlier ones; None before the first


class FairThread:
    """Weighted fair queueing, with equal weights, over pieces of work that cannot be interrupted.

    The next piece is the one that would finish first if all waiting parties shared the thread evenly. A piece is
    estimated to take as long as its party's last ones. So a party that needs less than its share waits only for the
    current piece and for parties like itself. Parties that need more divide the rest evenly.

    `clock` gives the processor seconds of the calling thread.
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._pool = ThreadPoolExecutor(1, name)
        self._arrived: SimpleQueue[tuple[Share, Callable[[], None]]] = SimpleQueue()
        # Only the thread uses the rest. The heap has virtual finish, number of arrival, virtual start, share and work.
        self._waiting: list[tuple[float, int, float, Share, Callable[[], None]]] = []
        self._numbers = count()
        self._now = 0.0  # virtual seconds: the start of the current piece

    def submit(self, share: Share, work: Callable[[], T], future: "Future[T] | None" = None) -> "Future[T]":
        """Queue some work for its share; its result goes to `future`, or to a new one.

        Raises:
            RuntimeError: the thread was closed.
        """
        future = Future() if future is None else future
        self._arrived.put((share, partial(settle, future, work)))
        self._pool.submit(self._do_next)
        return future

    def close(self) -> None:
        """End the thread after its current piece, without waiting for it. Other pieces are dropped."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _do_next(self) -> None:
        with suppress(Empty):
            while True:
                share, work = self._arrived.get_nowait()
                start = max(self._now, share.finish)
                share.finish = start + (_UNKNOWN if share.cost is None else share.cost)
                heappush(self._waiting, (share.finish, next(self._numbers), start, share, work))
        finish, _, start, share, work = heappop(self._waiting)
        self._now = max(self._now, start)
        began = self._clock()
        work()
        seconds = self._clock() - began
        share.finish += seconds - (finish - start)
        # A cheap piece after expensive ones does not make the next one cheap.
        share.cost = seconds if share.cost is None else max(seconds, share.cost / 2)


def settle(future: "Future[T]", work: Callable[[], T]) -> None:
    """Set a future to the result of some work, or to its error, unless the future is done already."""
    try:
        give = partial(future.set_result, work())
    except BaseException as error:  # noqa: BLE001 - passed on to the waiter
        give = partial(future.set_exception, error)
    with suppress(InvalidStateError):
        give()
