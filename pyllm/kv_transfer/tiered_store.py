"""Several stores as one, the fastest first: a block is kept in all of them, and loaded from the first that has it.

Knows no medium and no step.
"""

import threading
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor

from pyllm.kv_transfer.stores.store import KVStore, Retention, StoreStats

# Limit in bytes of blocks from a slower tier that wait to be saved in faster ones. Further blocks are not promoted.
MAX_PROMOTED_BYTES = 64 << 20


class TieredStore:
    """Closes its `tiers` with itself. If one fails, the others still serve.

    `promotes`: `saver` saves blocks from a slower tier in the faster ones. No load waits for it.
    """

    def __init__(self, tiers: Sequence[KVStore], *, promotes: bool = True, saver: Executor | None = None) -> None:
        self._tiers = tiers
        self._promotes = promotes
        self._saver = saver or ThreadPoolExecutor(1, thread_name_prefix="kv-tiers")
        self._lock = threading.Lock()
        self._promoted_bytes = 0
        self._is_closed = False

    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        """See `KVStore.lookup`. Each tier is asked for the blocks that the faster ones do not have."""
        found = [False] * len(keys)
        for tier in self._tiers:
            missing = [at for at, is_there in enumerate(found) if not is_there]
            if not missing:
                break
            for at, is_there in zip(missing, tier.lookup([keys[at] for at in missing]), strict=True):
                found[at] = is_there
        return found

    def load(self, keys: Sequence[bytes], into: Sequence[memoryview]) -> list[bool]:
        """See `KVStore.load`."""
        loaded = [False] * len(keys)
        for number, tier in enumerate(self._tiers):
            missing = [at for at, is_there in enumerate(loaded) if not is_there]
            if not missing:
                break
            given = tier.load([keys[at] for at in missing], [into[at] for at in missing])
            new = [at for at, is_there in zip(missing, given, strict=True) if is_there]
            for at in new:
                loaded[at] = True
            if number and new and self._promotes:
                self._promote(number, [keys[at] for at in new], [into[at] for at in new])
        return loaded

    def save(self, keys: Sequence[bytes], blocks: Sequence[memoryview], retention: Retention = "default") -> list[bool]:
        """See `KVStore.save`. True: one of the tiers keeps it."""
        kept = [tier.save(keys, blocks, retention) for tier in self._tiers]
        return [any(of_block) for of_block in zip(*kept, strict=True)]

    def stats(self) -> list[StoreStats]:
        """See `KVStore.stats`. The fastest tier comes first."""
        return [stats for tier in self._tiers for stats in tier.stats()]

    def close(self) -> None:
        """Close every tier. Blocks that wait to be promoted are dropped."""
        with self._lock:
            self._is_closed = True
        self._saver.shutdown(wait=False, cancel_futures=True)
        for tier in self._tiers:
            tier.close()

    def _promote(self, number: int, keys: Sequence[bytes], blocks: Sequence[memoryview]) -> None:
        """Let `saver` save blocks of tier `number` in the faster ones, as many as MAX_PROMOTED_BYTES allows."""
        num_promoted = 0
        with self._lock:
            while num_promoted < len(blocks) and self._promoted_bytes + len(blocks[num_promoted]) <= MAX_PROMOTED_BYTES:
                self._promoted_bytes += len(blocks[num_promoted])
                num_promoted += 1
        copies = [bytes(block) for block in blocks[:num_promoted]]
        with self._lock:
            if copies and not self._is_closed:
                self._saver.submit(self._save_promoted, number, keys[:num_promoted], copies)

    def _save_promoted(self, number: int, keys: Sequence[bytes], copies: Sequence[bytes]) -> None:
        try:
            for faster in self._tiers[:number]:
                faster.save(keys, [memoryview(copy) for copy in copies])
        finally:
            with self._lock:
                self._promoted_bytes -= sum(map(len, copies))
