"""A cache's pages are prefaulted ahead of the blocks in use, and nothing in it changes."""

import ctypes
import mmap

import numpy as np
from pyllm_kernels.tensors import address

from pyllm.machine.memory import Memory
from pyllm.workers.devices.host import HostDevice
from pyllm.workers.kv.kv_cache import KVCache, KVCacheShape
from pyllm.workers.kv.page_prefaulter import PagePrefaulter

# Of 12,000 blocks 197 MB: more than the heap has in one piece of what was used and freed, so that the kernel gives it.
SHAPE = KVCacheShape(num_layers=2, block_size=16, num_kv_heads=2, head_dim=64, dtype="bfloat16")
PLENTY = [Memory(1 << 40, 1 << 40, "the host")]


def untouched() -> KVCache:
    return KVCache(SHAPE, 12_000, HostDevice())


def prefault(prefaulter: PagePrefaulter, num_blocks: int) -> None:
    prefaulter.use(num_blocks)
    prefaulter.join()


def test_pages_are_there_and_nothing_is_changed() -> None:
    cache = untouched()
    cache.layers[1].keys[500] = 3
    before = share_in_memory(cache)
    prefault(PagePrefaulter(cache.memory, cache.memory.nbytes), 0)
    assert (before < 0.5, share_in_memory(cache)) == (True, 1)
    assert float(cache.memory.astype(np.float32).sum()) == 3 * cache.layers[1].keys[500].size


def test_they_come_as_blocks_come_into_use() -> None:
    cache, asked = untouched(), []

    def read() -> list[Memory]:
        asked.append(True)
        return PLENTY

    prefaulter = PagePrefaulter(cache.memory, cache.memory.nbytes // 10, read)
    prefault(prefaulter, 0)
    first = len(asked)
    assert share_in_memory(cache) < 0.5  # A tenth, and what is beyond it of huge pages, which the kernel gives whole.
    prefault(prefaulter, 600)
    assert len(asked) == first, "half of what is ahead is there still"
    prefault(prefaulter, 601)
    assert len(asked) > first
    prefault(prefaulter, 12_000)
    assert share_in_memory(cache) == 1
    last = len(asked)
    prefault(prefaulter, 12_000)
    assert len(asked) == last


def test_pages_that_memory_is_short_of_are_left_to_who_needs_them() -> None:
    cache = untouched()
    memories = [*PLENTY, Memory(cache.memory.nbytes, 1 << 30, "a container")]
    prefault(PagePrefaulter(cache.memory, cache.memory.nbytes, lambda: memories), 0)
    assert share_in_memory(cache) < 0.5


def share_in_memory(cache: KVCache) -> float:
    """Of the pages that the cache fills, by what the kernel says."""
    begin = address(cache.memory)
    first = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
    num_pages = (address(cache.memory[-1, -1, -1, -1]) - first) // mmap.PAGESIZE
    pages = (ctypes.c_ubyte * num_pages)()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(first), ctypes.c_size_t(num_pages * mmap.PAGESIZE), pages) == 0
    return sum(page & 1 for page in pages) / num_pages
