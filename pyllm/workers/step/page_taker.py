"""Takes the pages of a CPU's KV cache before steps write to them. Knows no sequence and no plan."""

import ctypes
import mmap
import threading
from collections.abc import Callable

from torch import Tensor

from pyllm.supervision.memory import Memory, host_memory

TAKEN_AHEAD = 512 << 20  # bytes
_HUGE_PAGE = 2 << 20  # bytes
_MADV_POPULATE_WRITE = 23


class PageTaker:
    """Of `memory` [layers, 2, num_blocks, ...] on a CPU, whose blocks are used from the first on.

    The first touch of a huge page delays a step by up to 4 ms, so a thread touches what comes next: `TAKEN_AHEAD`
    bytes beyond the last block in use, so that a cache that is not filled does not take the memory of others. It
    changes nothing in the cache, so steps may run meanwhile. It stops when less than twice as much as it would take is
    free: a cache must not get this process killed. Kernels before 5.14 cannot do it.
    """

    def __init__(
        self, memory: Tensor, ahead: int = TAKEN_AHEAD, read: Callable[[], list[Memory]] = host_memory
    ) -> None:
        self._planes = memory.flatten(0, 1)
        self._num_blocks = memory.shape[2]
        self._read = read
        self._ahead = max(1, ahead * self._num_blocks // memory.nbytes)  # blocks
        self._num_taken = 0
        self._num_used = 0
        self._wake = threading.Event()

    def start(self) -> None:
        """Do it from now on, in a thread: neither a start nor a recovery waits for it."""
        threading.Thread(target=self.run, name="take-pages", daemon=True).start()

    def use(self, block: int) -> None:
        """Note that a step writes to a block."""
        if block >= self._num_used:
            self._num_used = block + 1
            if self._num_used + self._ahead // 2 > self._num_taken:
                self._wake.set()

    def run(self) -> None:
        """Take pages until all are taken, or memory is short."""
        while self._num_taken < self._num_blocks:
            end = min(self._num_blocks, self._num_used + self._ahead)
            if end > self._num_taken and not self._take(end):
                return
            if self._num_taken < self._num_blocks:
                self._wake.wait()
                self._wake.clear()

    def _take(self, end: int) -> bool:
        madvise = ctypes.CDLL(None).madvise
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        wanted = [_pages(plane[self._num_taken : end]) for plane in self._planes]
        left = sum(last - first for first, last in wanted)
        # In small steps: other threads that map memory wait for the end of a call.
        for first, last in wanted:
            for start in range(first, last, _HUGE_PAGE):
                if any(memory.available < 2 * left for memory in self._read()):
                    return False
                if madvise(start, min(_HUGE_PAGE, last - start), _MADV_POPULATE_WRITE):
                    return False
                left -= min(_HUGE_PAGE, last - start)
        self._num_taken = end
        return True


def _pages(blocks: Tensor) -> tuple[int, int]:
    """The addresses of the whole pages that contiguous blocks touch, without one that they share with what follows."""
    begin, end = blocks.data_ptr(), blocks.data_ptr() + blocks.nbytes
    return begin // mmap.PAGESIZE * mmap.PAGESIZE, max(begin, end) // mmap.PAGESIZE * mmap.PAGESIZE
