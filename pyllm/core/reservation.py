"""The reservation of this core for requests that were lost with another one.

Clients ask for it, and see it in load reports. It refuses no request: clients send requests elsewhere, since only they
know whether another core can take them.
"""

from collections.abc import Callable

from pyllm.wire.messages import MAX_RESERVATION, RESERVATION


class Reservation:
    """Starts with a client's `Reserve` and lasts `RESERVATION` seconds after the latest one.

    It lasts at most `MAX_RESERVATION` in total. Then the core cannot be reserved for as long as it was.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._begin = self._end = float("-inf")
        self._rests_until = float("-inf")

    def begin_or_extend(self) -> bool:
        """Begin or extend the reservation for a client. True if it begins."""
        now = self._clock()
        begins = now >= self._rests_until
        if begins:
            self._begin = now
        elif now >= self._end:
            return False
        self._end = min(now + RESERVATION, self._begin + MAX_RESERVATION)
        self._rests_until = self._end + (self._end - self._begin)
        return begins

    @property
    def end(self) -> float:
        """The time of its end by this core's clock; 0 if there is no reservation."""
        return self._end if self.seconds_left else 0.0

    @property
    def seconds_left(self) -> float:
        """Seconds until its end, unless a client extends it."""
        return max(0.0, self._end - self._clock())
