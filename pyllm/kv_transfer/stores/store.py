"""The interface of stores of KV blocks, and their figures. Knows no medium and no model.

A key is `namespace || block hash || group (u32) || rank (u32)`: the namespace is a digest of all that a block's bits
depend on, so another model's block is never found. A value is one block of one group of layers of one rank.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Protocol

import msgspec

# The retention of a block. `none`: not saved. `default`: kept until it is evicted. `long`: kept longer than `default`.
Retention = Literal["none", "default", "long"]


class StoreStats(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a tier of a store. Counts and seconds are those of this process since it opened the store.

    Sizes cover all processes that use the store, as this one last saw it; 0 if unknown. Live blocks are those that can
    be found. Each block of a `load` counts once: as `num_loaded`, `num_absent`, `num_corrupt` or `num_unreadable`.
    """

    tier: str  # its name in metrics: disk, redis
    num_queries: int = 0  # blocks that were looked up
    num_hits: int = 0  # of those, the blocks that were there
    num_loaded: int = 0  # blocks
    num_absent: int = 0  # blocks that a load did not find
    num_corrupt: int = 0  # blocks with a wrong checksum
    num_unreadable: int = 0  # blocks that could not be read
    num_saved: int = 0  # blocks that were written
    num_failed_saves: int = 0  # blocks that are not kept; one already stored counts neither here nor above
    num_evicted: int = 0  # blocks that this process evicted
    loaded_bytes: int = 0
    saved_bytes: int = 0
    load_seconds: float = 0.0  # within `load`, of all threads together, with calls that fail or time out
    save_seconds: float = 0.0  # within `save`, likewise
    capacity_bytes: int = 0  # 0: the store has no bound of its own
    used_bytes: int = 0  # taken from the medium, with those of dead blocks
    live_bytes: int = 0
    num_blocks: int = 0  # live
    num_free_runs: int = 0  # gaps between live blocks
    longest_free_run_bytes: int = 0
    num_compactions: int = 0
    num_pauses: int = 0  # times the store was not asked for a while, because it was slow or unreachable


class StoreCounter:
    """Adds up the figures of a tier: fields of `StoreStats`, by name. Thread-safe."""

    def __init__(self, tier: str) -> None:
        self._tier = tier
        self._lock = threading.Lock()
        self._sums: dict[str, Any] = defaultdict(int)

    def add(self, figure: str, number: float = 1) -> float:
        """Add to a figure; returns the sum."""
        with self._lock:
            self._sums[figure] += number
            return float(self._sums[figure])

    @contextmanager
    def timed(self, figure: str) -> Iterator[None]:
        """Add the seconds that the block of code takes."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(figure, time.perf_counter() - start)

    def stats(self, **sizes: int) -> StoreStats:
        """The figures so far, with the sizes that the store knows."""
        with self._lock:
            return StoreStats(tier=self._tier, **self._sums, **sizes)


class KVStore(Protocol):
    """A store of blocks by key. Blocking, batched and thread-safe; several processes may open the same one.

    No method raises errors of the medium: a failure is a miss, or a block that is not kept. Buffers are contiguous
    views of bytes, and used only during the call.
    """

    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        """Whether each block is stored. It may be evicted before it is loaded."""

    def load(self, keys: Sequence[bytes], into: Sequence[memoryview]) -> list[bool]:
        """Read each block into the buffer of its size.

        Returns:
            Whether each buffer holds the block as it was saved. If not, the block is absent, of another size, corrupt
            or unreadable, and the buffer's content is undefined.
        """

    def save(self, keys: Sequence[bytes], blocks: Sequence[memoryview], retention: Retention = "default") -> list[bool]:
        """Save each block; one already stored is not written again, but kept longer if `retention` is longer.

        Returns:
            Whether each is stored now: False if the store is full or failed, and for the retention `none`.
        """

    def stats(self) -> list[StoreStats]:
        """The figures of each tier. It sends no network requests."""

    def close(self) -> None:
        """Close files and connections; blocks stay. It does not wait for calls under way.

        Later calls are safe: they find nothing, and save nothing.
        """
