"""A limit of restarts of a process, and the delay before each: plain arithmetic on a given clock."""

from collections import deque

WINDOW = 60.0  # seconds
FIRST_DELAY = 0.1  # seconds before the second restart within the window; doubled for each further one
LONGEST_DELAY = 5.0


class RestartBudget:
    """At most `max_restarts` within `WINDOW`; the first has no delay, so that a single death costs nothing."""

    def __init__(self, max_restarts: int) -> None:
        self.max_restarts = max_restarts
        self._restarts: deque[float] = deque()

    def take(self, now: float) -> float | None:
        """Count a restart; returns the seconds to wait before it, or None if none is left."""
        if self.num_taken(now) >= self.max_restarts:
            return None
        delay = FIRST_DELAY * 2 ** (len(self._restarts) - 1) if self._restarts else 0.0
        self._restarts.append(now)
        return min(delay, LONGEST_DELAY)

    def num_taken(self, now: float) -> int:
        """The number of restarts within the window."""
        while self._restarts and self._restarts[0] <= now - WINDOW:
            self._restarts.popleft()
        return len(self._restarts)
