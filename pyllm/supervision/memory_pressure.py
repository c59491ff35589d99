"""Memory pressure: watches the kernel's signal, and shrinks caches while it lasts. Does not know their contents."""

import logging
import time
from collections.abc import Callable, Sequence

from pyllm.machine.memory import Memory, host_memory
from pyllm.supervision.process_memory import return_freed_memory

INTERVAL = 10.0  # seconds between two halvings of the caches
LEAST_SHARE = 1 / 64  # of its configured size that a cache keeps at least

logger = logging.getLogger(__name__)


class MemoryPressure:
    """Halves caches while memory is short, every 10 s, and lets them grow again once there is enough.

    Each of `resize` takes the share of its configured size that a cache may have. `read` returns all memory limits.
    """

    def __init__(
        self,
        resize: Sequence[Callable[[float], None]],
        read: Callable[[], list[Memory]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._resize = resize
        self._read = read or host_memory
        self._clock = clock
        self._share = 1.0
        self._next_halving = 0.0

    def look(self) -> bool:
        """Check the memory; returns whether the caches were halved now. Call it once or twice a second."""
        memories = self._read()
        short = next((memory for memory in memories if memory.is_short), None)
        if short is not None:
            now = self._clock()
            if self._share <= LEAST_SHARE or now < self._next_halving:
                return False
            self._next_halving = now + INTERVAL
            self._set(self._share / 2)
            return_freed_memory()
            text = "%d MB of %s's %d MB of memory are available: caches are down to %.3g of their size"
            logger.warning(text, short.available // 1_000_000, short.owner, short.total // 1_000_000, self._share)
            return True
        if self._share < 1 and all(memory.is_enough for memory in memories):
            self._set(1.0)
            logger.info("there is enough memory again: caches grow back")
        return False

    def _set(self, share: float) -> None:
        self._share = share
        for resize in self._resize:
            resize(share)
