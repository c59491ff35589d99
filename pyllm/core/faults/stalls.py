"""Decides when a step takes too long. Adds up the time between looks, so that a core that was itself stopped blames no
worker. Knows no executor: its caller acts on a stall.
"""

SHORTEST_BOUND = 5.0  # seconds
# Before a similar step was measured: long enough for compilers, less if the time of its tokens is bounded.
UNMEASURED_BOUND = 600.0
SHORTEST_UNMEASURED_BOUND = 30.0
TIMES_EXPECTED = 10.0
TIMES_BOUND = 3.0  # after which the step is given up
# Longer pauses between two looks count as this: the core itself was stopped.
LONGEST_PAUSE = 1.0


def bound(expected: float | None, most: float | None = None) -> float:
    """Seconds after which a step that should take `expected` is stalled.

    `expected` is None if no similar step was measured; `most` is an upper bound in seconds, if there is one.
    """
    if expected is not None:
        return max(SHORTEST_BOUND, TIMES_EXPECTED * expected)
    if most is not None:
        return min(UNMEASURED_BOUND, max(SHORTEST_UNMEASURED_BOUND, TIMES_EXPECTED * most))
    return UNMEASURED_BOUND


class StallWatch:
    """Looks at the oldest step in flight, at 1 Hz or more often."""

    def __init__(self) -> None:
        self.seconds = 0.0  # that the step has taken, added up over the looks
        self._step = -1
        self._bound = UNMEASURED_BOUND
        self._looked = 0.0

    def look(self, now: float, step: int, expected: float | None, most: float | None = None) -> None:
        """Note that `step` is in flight; see `bound` for `expected` and `most`."""
        if step != self._step:
            self._step, self.seconds = step, 0.0
        else:
            self.seconds += min(now - self._looked, LONGEST_PAUSE)
        self._looked, self._bound = now, bound(expected, most)

    def rest(self) -> None:
        """Note that nothing is in flight."""
        self._step, self.seconds = -1, 0.0

    @property
    def is_stalled(self) -> bool:
        return self.seconds > self._bound

    @property
    def is_hopeless(self) -> bool:
        """Whether the workers should be replaced."""
        return self.seconds > TIMES_BOUND * self._bound

    @property
    def reason(self) -> str:
        return f"step {self._step} has taken more than {self._bound:.0f} s, and work waits"
