"""When a step takes too long. Counts what it is shown, so that a core that was itself stopped blames no worker.

Knows no executor: what is done about it is decided elsewhere.
"""

SHORTEST_BOUND = 5.0  # seconds
# Before any step like it was measured: as long as compilers take, or less by what its tokens may take at most.
UNMEASURED_BOUND = 600.0
SHORTEST_UNMEASURED_BOUND = 30.0
TIMES_EXPECTED = 10.0
TIMES_BOUND = 3.0  # after which nobody waits for it any more
# Two looks that are further apart than this count as this: in between nobody was looking.
LONGEST_PAUSE = 1.0


def bound(expected: float | None, most: float | None = None) -> float:
    """Seconds after which a step that should take `expected` is stalled.

    Where that is None, nothing like it was measured; `most` is what it should take at most, if that is known.
    """
    if expected is not None:
        return max(SHORTEST_BOUND, TIMES_EXPECTED * expected)
    if most is not None:
        return min(UNMEASURED_BOUND, max(SHORTEST_UNMEASURED_BOUND, TIMES_EXPECTED * most))
    return UNMEASURED_BOUND


class StallWatch:
    """Looks at the oldest step in flight, at 1 Hz or more often."""

    def __init__(self) -> None:
        self.seconds = 0.0  # that it has taken, as far as was seen
        self._step = -1
        self._bound = UNMEASURED_BOUND
        self._looked = 0.0

    def look(self, now: float, step: int, expected: float | None, most: float | None = None) -> None:
        """`step` is in flight; for the others see `bound`."""
        if step != self._step:
            self._step, self.seconds = step, 0.0
        else:
            self.seconds += min(now - self._looked, LONGEST_PAUSE)
        self._looked, self._bound = now, bound(expected, most)

    def rest(self) -> None:
        """Nothing is in flight."""
        self._step, self.seconds = -1, 0.0

    @property
    def is_stalled(self) -> bool:
        return self.seconds > self._bound

    @property
    def is_hopeless(self) -> bool:
        """Whether it is time for other workers."""
        return self.seconds > TIMES_BOUND * self._bound

    @property
    def reason(self) -> str:
        return f"step {self._step} has taken more than {self._bound:.0f} s, and work waits"
