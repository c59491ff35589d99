"""The speed of saves, loads and look-ups of the disk store, by the size of a block, in batches like a connector's.

The page cache holds all blocks, so this is the cost of the store and not of the disk.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.record import Record
from pyllm.kv_transfer.stores.disk_store import DiskStore

KEY_BYTES = 72
BLOCK_BYTES = (64 << 10, 256 << 10, 1 << 20, 2 << 20)
TOTAL_BYTES = 256 << 20
BATCH = 16
ROUNDS = 5


def run() -> Iterator[Record]:
    for block_bytes in BLOCK_BYTES:
        rounds = [_round(block_bytes) for _ in range(ROUNDS)]
        saving, loading, looking_up = (min(seconds) for seconds in zip(*rounds, strict=True))
        for name, seconds in (("save", saving), ("load", loading)):
            value = round(TOTAL_BYTES / seconds / 1e9, 2)
            yield {"name": f"kv_store.{name}", "value": value, "unit": "GB/s", "kilobytes": block_bytes / 1024}
        value = round(TOTAL_BYTES / block_bytes / looking_up)
        yield {"name": "kv_store.lookup", "value": value, "unit": "blocks/s", "kilobytes": block_bytes / 1024}


def _round(block_bytes: int) -> tuple[float, float, float]:
    """Seconds to save, load and look up all blocks of a new store."""
    keys = [os.urandom(KEY_BYTES) for _ in range(TOTAL_BYTES // block_bytes)]
    blocks = [memoryview(os.urandom(block_bytes)) for _ in range(BATCH)]
    into = [memoryview(bytearray(block_bytes)) for _ in range(BATCH)]
    with tempfile.TemporaryDirectory() as folder:
        store = DiskStore(Path(folder), 2 * TOTAL_BYTES)
        try:
            return (
                _seconds(keys, lambda batch: store.save(batch, blocks)),
                _seconds(keys, lambda batch: store.load(batch, into)),
                _seconds(keys, store.lookup),
            )
        finally:
            store.close()


def _seconds(keys: Sequence[bytes], ask: Callable[[Sequence[bytes]], list[bool]]) -> float:
    """CPU seconds of this process for all keys."""
    start = time.process_time()
    for first in range(0, len(keys), BATCH):
        if not all(ask(keys[first : first + BATCH])):
            raise RuntimeError("the store has not kept what it was given")
    return time.process_time() - start
