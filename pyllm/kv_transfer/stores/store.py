"""What every store of KV blocks does, and its figures. Knows no medium and no model.

A key is `namespace || block hash || group (u32) || rank (u32)`: the namespace is a digest of all that a block's bits
depend on, so another model's block is never found. A value is one block of one group of layers of one rank.
"""

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

# How long a block is kept. `none`: not at all. `default`: while it is among those used last. `long`: longer than those.
Retention = Literal["none", "default", "long"]


class StoreStats(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a tier of a store. Counts and seconds are of this process since it opened the store.

    Sizes are of what all processes have in the store together, as this process last saw it; 0 where it cannot tell.
    A block that `load` is asked for counts once: as `num_loaded`, `num_absent`, `num_corrupt` or `num_unreadable`.
    """

    tier: str  # its name in metrics: disk, redis
    num_queries: int = 0  # blocks that were looked up
    num_hits: int = 0  # of those
    num_loaded: int = 0  # blocks
    num_absent: int = 0  # blocks that a load did not find
    num_corrupt: int = 0  # blocks that were not as they were saved
    num_unreadable: int = 0  # blocks that could not be read
    num_saved: int = 0  # blocks that were written; one that is there already counts in none of these
    num_failed_saves: int = 0
    num_evicted: int = 0  # blocks that this process evicted
    loaded_bytes: int = 0
    saved_bytes: int = 0
    load_seconds: float = 0.0  # within `load`, of all threads together
    save_seconds: float = 0.0
    capacity_bytes: int = 0  # 0: the store has no bound of its own
    used_bytes: int = 0  # taken from the medium, whatever they hold
    live_bytes: int = 0  # of blocks that can be found
    num_blocks: int = 0
    num_free_runs: int = 0  # stretches of used bytes that hold nothing which can be found
    longest_free_run_bytes: int = 0
    num_compactions: int = 0
    num_pauses: int = 0  # times the store was not asked for a while, because it was slow or unreachable


class KVStore(Protocol):
    """A store of blocks by key. Blocking, batched and thread-safe; several processes may open the same one.

    Whatever fails is a miss or a block that is not kept: no method raises because of the medium. Buffers are
    contiguous views of bytes; they are borrowed for the call.
    """

    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        """Whether each block is there. A promise for a moment: it may be evicted before it is loaded."""

    def load(self, keys: Sequence[bytes], into: Sequence[memoryview]) -> list[bool]:
        """Read each block into the buffer of its size.

        Returns:
            Whether the buffer holds the block as it was saved. Else it is absent, of another size or corrupt, or could
            not be read; then the buffer's content is undefined.
        """

    def save(self, keys: Sequence[bytes], blocks: Sequence[memoryview], retention: Retention = "default") -> list[bool]:
        """Keep each block; one that is there already is not written again, but kept longer if that is asked for now.

        Returns:
            Whether it is kept now: False where the store is full or failed, and for the retention `none`.
        """

    def stats(self) -> list[StoreStats]:
        """The figures so far, one for each tier. It asks no other machine."""

    def close(self) -> None:
        """Give up files and connections; blocks stay. It waits for no medium that hangs.

        A thread that was left behind may still call: it finds nothing, and nothing is kept. A call under way ends by
        itself.
        """
