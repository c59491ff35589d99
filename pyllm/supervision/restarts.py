"""Restarts of processes: a limit, the delay before each, and their counts. Starts no process.

Counts are of one process, by its id, or of several that are restarted together.
"""

from collections import deque
from collections.abc import Sequence

from pyllm.wire.messages import Restarts

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


def restarted(before: Restarts | None, pid: int, at: float, reason: str) -> Restarts:
    """The count after one more restart; `pid` is the new process."""
    return Restarts(pid, 1 if before is None else before.num_restarts + 1, at, reason)


def all_restarted(before: Sequence[Restarts], size: int, at: float, reason: str) -> tuple[Restarts, ...]:
    """The counts after one more restart of each of `size` processes, without ids yet; `before` is empty or has all."""
    known: Sequence[Restarts | None] = before or [None] * size
    return tuple(restarted(each, 0, at, reason) for each in known)


def with_pids(restarts: Sequence[Restarts], pids: Sequence[int]) -> tuple[Restarts, ...]:
    """The same counts with the ids of the processes."""
    pairs = zip(restarts, pids, strict=True)
    return tuple(Restarts(pid, each.num_restarts, each.at, each.reason) for each, pid in pairs)
