"""Prefaults the pages of a CPU's KV cache before steps write to them. Knows no sequence and no plan."""

import ctypes
import mmap
import os
import threading
from collections.abc import Callable

from pyllm_kernels.tensors import Tensor, address

from pyllm.machine.memory import Memory, host_memory

PREFAULTED_AHEAD = 32 << 20  # bytes
NICENESS = 10  # of the thread, above that of its process: a step comes first
_HUGE_PAGE = 2 << 20  # bytes
_MADV_POPULATE_WRITE = 23


class PagePrefaulter:
    """Prefaults `memory` [layers, 2, num_blocks, ...] of a `KVCache` of numpy; blocks are used in order.

    The first touch of a huge page delays a step by up to 4 ms, so a thread touches pages in advance: only `ahead` bytes
    beyond the last block in use, so that a cache that is not full leaves memory to others. It changes nothing in the
    cache, so steps may run meanwhile. It stops for good when less than twice the memory that it needs is free: a cache
    must not get this process killed. Linux before 5.14 does not support it.
    """

    def __init__(
        self, memory: Tensor, ahead: int = PREFAULTED_AHEAD, read: Callable[[], list[Memory]] = host_memory
    ) -> None:
        self._num_blocks = memory.shape[2]
        self._start: int = address(memory)
        self._block_bytes: int = (address(memory[:, :, -1]) - self._start) // max(1, self._num_blocks - 1)
        self._read = read
        self._ahead = max(1, ahead * self._num_blocks // memory.nbytes)  # blocks
        self._end = 0  # of the prefaulted blocks
        self._is_over = False
        self._thread: threading.Thread | None = None

    def use(self, num_blocks: int) -> None:
        """Prefault more if steps write to the first `num_blocks`, and little is prefaulted beyond them."""
        if self._is_over or num_blocks + self._ahead // 2 <= self._end:
            return
        if self._thread is None or not self._thread.is_alive():
            end = min(self._num_blocks, num_blocks + self._ahead)
            self._thread = threading.Thread(target=self._prefault, args=(end,), name="prefault-kv", daemon=True)
            self._thread.start()

    def join(self) -> None:
        """Wait for the thread, if one is running."""
        if self._thread is not None:
            self._thread.join()

    def _prefault(self, end: int) -> None:
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, min(19, os.getpriority(os.PRIO_PROCESS, thread) + NICENESS))
        self._is_over = not self._populate(self._page(self._end), self._page(end)) or end == self._num_blocks
        self._end = end

    def _page(self, block: int) -> int:
        """The address of the page in which a block begins."""
        return (self._start + block * self._block_bytes) // mmap.PAGESIZE * mmap.PAGESIZE

    def _populate(self, first: int, last: int) -> bool:
        """Prefault a range of addresses; False if memory is short, or the kernel does not support it."""
        madvise = ctypes.CDLL(None).madvise
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        # In small steps: other threads that map memory wait until a call ends.
        for start in range(first, last, _HUGE_PAGE):
            if any(memory.available < 2 * (last - start) for memory in self._read()):
                return False
            if madvise(start, min(_HUGE_PAGE, last - start), _MADV_POPULATE_WRITE):
                return False
        return True
