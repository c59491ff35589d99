"""A store of KV blocks in this process's memory. Stores of one name share their blocks, so that a new engine finds the
blocks that the one before has saved."""

import threading
from collections.abc import Sequence
from zlib import crc32

from pyllm.kv_transfer.stores.store import Retention, StoreStats

_STORES: dict[str, dict[bytes, tuple[int, bytes]]] = {}


class DictStore:
    """Keeps each block with a checksum of its bytes."""

    def __init__(self, name: str) -> None:
        self.blocks = _STORES.setdefault(name, {})
        self.retentions: dict[bytes, Retention] = {}  # of the last save of each key
        self._lock = threading.Lock()
        self._num_loaded = self._num_absent = self._num_corrupt = self._num_saved = 0

    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        return [key in self.blocks for key in keys]

    def load(self, keys: Sequence[bytes], into: Sequence[memoryview]) -> list[bool]:
        return [self._load(key, buffer) for key, buffer in zip(keys, into, strict=True)]

    def save(self, keys: Sequence[bytes], blocks: Sequence[memoryview], retention: Retention = "default") -> list[bool]:
        with self._lock:
            self.retentions.update(dict.fromkeys(keys, retention))
            for key, block in zip(keys, blocks, strict=True):
                if key not in self.blocks:
                    self.blocks[key] = crc32(block), bytes(block)
                    self._num_saved += 1
        return [True] * len(keys)

    def stats(self) -> list[StoreStats]:
        return [
            StoreStats(
                tier="dict",
                num_loaded=self._num_loaded,
                num_absent=self._num_absent,
                num_corrupt=self._num_corrupt,
                num_saved=self._num_saved,
            )
        ]

    def close(self) -> None:
        pass

    def _load(self, key: bytes, buffer: memoryview) -> bool:
        with self._lock:
            checksum, block = self.blocks.get(key, (0, None))
            if block is None or len(block) != len(buffer):
                self._num_absent += 1
                return False
            buffer[:] = block
            is_whole = crc32(block) == checksum
            self._num_loaded += is_whole
            self._num_corrupt += not is_whole
            return is_whole


def open_dict(name: str) -> DictStore:
    """The store of this name."""
    return DictStore(name)


def forget_all() -> None:
    """Every store is empty."""
    for blocks in _STORES.values():
        blocks.clear()
