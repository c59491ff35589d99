"""Logs a burst of an event in two lines, at its begin and at its end. The caller counts events."""

import logging
import time
from collections.abc import Callable

QUIET = 10.0  # seconds without another event after which a burst is over

logger = logging.getLogger(__name__)


class BurstLogger:
    """Logs `what` when a count begins to rise, and again when it has not risen for 10 s."""

    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._clock = clock
        self._count = 0
        self._count_before: int | None = None  # at the begin of the burst; None: no burst
        self._last = 0.0

    def look(self, count: int) -> None:
        """Compare with the count so far. Call it once or twice a second."""
        now = self._clock()
        if count > self._count:
            self._last = now
            if self._count_before is None:
                self._count_before = self._count
                logger.warning("%s", self._what)
        elif self._count_before is not None and now - self._last >= QUIET:
            logger.warning("%s: %d times, and not for %g s now", self._what, self._count - self._count_before, QUIET)
            self._count_before = None
        self._count = count
