"""Host blocks of one rank in memory that outlives the worker, with an index of their names.

A block is valid once its copy is complete: its entry is valid, and its checksum is right. Knows neither the owner of
the memory, nor which of the blocks the scheduler uses.
"""

import logging
import math
import mmap
import os
import struct
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from queue import Full, Queue
from typing import Any

import numpy as np
import numpy.typing as npt
from pyllm_kernels.tensors import numpy_dtype

from pyllm._rust import xxh3
from pyllm.wire.plan_layout import NO_GROUP, SWAP_NAME_SIZE

logger = logging.getLogger(__name__)

_MAGIC = b"pyllm-kv"
# The magic, number of blocks, bytes of a block, identity, and seconds of a swap: below 0, not measured.
_HEADER = struct.Struct("=8sQQ32sd")
_HEADER_SIZE = 64
_EMPTY, _WRITING, _VALID = 0, 1, 2
_GROUP = slice(32, 36)  # the bytes of a block's name that are its group
_MAX_LATE = 256  # the most plans with copies in progress
_ENTRY = np.dtype(
    [("state", "<u4"), ("unused", "<u4"), ("checksum", "<u8"), ("name", f"V{SWAP_NAME_SIZE}"), ("padding", "V8")]
)
_RECORD = np.dtype([("block", "<u4"), ("name", f"V{SWAP_NAME_SIZE}")])

Blocks = npt.NDArray[np.int32]
Names = npt.NDArray[np.uint8]
Writes = npt.NDArray[np.int64]


class HostTier:
    """The host blocks: `blocks` is [num_blocks, *shape], in the memory of `descriptor`, which the caller owns.

    A block may be a state. The memory is from the byte `start`, a multiple of a page, to `end`; another tier may follow
    if it is made after this one. `identity` (32 bytes) is a digest of the model, its numerics and the layout, with that
    of the tier after it. Memory with another identity or size is cleared. Existing blocks are verified on a thread; see
    `inventory`.

    A write is `begin`, then the copy, then `finish`. An entry is invalid before the copy begins, and valid after it has
    ended. So whenever the process is killed, a valid entry has a complete copy.
    """

    def __init__(
        self, descriptor: int, identity: bytes, num_blocks: int, shape: Sequence[int], dtype: str, *, start: int = 0
    ) -> None:
        self.num_blocks = num_blocks
        block_bytes = math.prod(shape) * numpy_dtype(dtype).itemsize
        index_end = _HEADER_SIZE + num_blocks * _ENTRY.itemsize
        blocks_start = _whole_pages(index_end)
        size = blocks_start + num_blocks * block_bytes
        self.end = start + _whole_pages(size)
        header = _HEADER.pack(_MAGIC, num_blocks, block_bytes, identity, -1.0)[: -struct.calcsize("d")]
        is_known = os.pread(descriptor, len(header), start) == header and os.fstat(descriptor).st_size >= start + size
        if not is_known:
            os.ftruncate(descriptor, start)
            os.ftruncate(descriptor, start + size)
        self._memory = memory = mmap.mmap(descriptor, size, offset=start)
        self._seconds = np.frombuffer(memory, "<f8", 1, len(header))
        self._entries = np.frombuffer(memory, _ENTRY, num_blocks, _HEADER_SIZE)
        self._bytes = np.frombuffer(memory, np.uint8, num_blocks * block_bytes, blocks_start)
        self._bytes = self._bytes.reshape(num_blocks, block_bytes)
        self.blocks = self._bytes.view(numpy_dtype(dtype)).reshape(num_blocks, *shape)
        if not is_known:  # The magic is written last: without it the memory is empty.
            self._seconds[0] = -1.0
            memory[len(_MAGIC) : len(header)] = header[len(_MAGIC) :]
            memory[: len(_MAGIC)] = _MAGIC
        self._lock = threading.Lock()
        self._writes = np.zeros(num_blocks, np.int64)  # the number of writes begun, by block
        self._late: Queue[tuple[Any, Blocks, Names, Writes]] | None = None
        self._inventory: Future[bytes] = Future()
        self._is_forgotten = False
        threading.Thread(target=self._verify, name="verify-host-blocks", daemon=True).start()

    @property
    def swap_seconds(self) -> float | None:
        """Seconds of a swap, measured by this or an earlier process while the memory was empty; None if not yet."""
        seconds = float(self._seconds[0])
        return seconds if seconds >= 0 else None

    @swap_seconds.setter
    def swap_seconds(self, seconds: float) -> None:
        self._seconds[0] = seconds

    def inventory(self) -> bytes:
        """The valid blocks at the start, in order; waits until they are verified. Empty after `forget`.

        Each entry is the number of a block (uint32) and its name, from the plan's `swap_names`.
        """
        whole = self._inventory.result()
        return b"" if self._is_forgotten else whole

    def begin(self, blocks: Blocks) -> Writes:
        """Invalidate these blocks (int32, each once) before a write. Pass the result to `finish`."""
        with self._lock:
            self._entries["state"][blocks] = _WRITING
            self._writes[blocks] += 1
            return self._writes[blocks]

    def finish(self, blocks: Blocks, names: Names, writes: Writes) -> None:
        """Validate written blocks that have a name, unless another write of a block has begun since `begin`.

        - names uint8 [40 * blocks], as in a plan's `swap_names`.
        - writes: the result of `begin`.
        """
        each = names.reshape(len(blocks), SWAP_NAME_SIZE)
        is_named = np.ascontiguousarray(each[:, _GROUP]).view("<u4")[:, 0] != NO_GROUP
        for at in np.flatnonzero(is_named).tolist():
            block, name = int(blocks[at]), each[at]
            checksum = self._checksum(block, name.tobytes())
            with self._lock:
                if self._writes[block] == writes[at]:
                    entry = self._entries[block : block + 1]
                    entry["checksum"] = checksum
                    entry["name"] = name.view(f"V{SWAP_NAME_SIZE}")
                    entry["state"] = _VALID

    def finish_after(self, event: Any, blocks: Blocks, names: Names, writes: Writes) -> None:
        """Call `finish` on a thread, after an event of a GPU. If too many calls wait, these blocks stay invalid."""
        if self._late is None:
            self._late = Queue(_MAX_LATE)
            threading.Thread(target=self._finish_late, args=(self._late,), name="finish-swaps", daemon=True).start()
        with suppress(Full):
            self._late.put_nowait((event, blocks, names, writes))

    def forget(self) -> None:
        """Invalidate all blocks."""
        with self._lock:
            self._is_forgotten = True
            self._entries["state"] = _EMPTY
            self._writes += 1

    def _finish_late(self, late: "Queue[tuple[Any, Blocks, Names, Writes]]") -> None:
        while True:
            event, blocks, names, writes = late.get()
            event.synchronize()
            self.finish(blocks, names, writes)

    def _verify(self) -> None:
        try:
            self._inventory.set_result(self._verified())
        except BaseException as error:  # noqa: BLE001 - `inventory` raises it
            self._inventory.set_exception(error)

    def _verified(self, clock: Callable[[], float] = time.perf_counter) -> bytes:
        started = clock()
        valid = np.flatnonzero(self._entries["state"] == _VALID)
        is_whole = np.array([self._is_whole(block) for block in valid.tolist()], bool)
        with self._lock:  # No plan comes before the inventory, so no block has been written yet.
            self._entries["state"][np.setdiff1d(np.arange(self.num_blocks), valid[is_whole])] = _EMPTY
        if len(valid):
            num_damaged = len(valid) - int(is_whole.sum())
            seconds = clock() - started
            logger.info("the host memory has %d KV blocks from before, verified in %.2f s", is_whole.sum(), seconds)
            if num_damaged:
                logger.warning("%d KV blocks in host memory were damaged: they are computed anew", num_damaged)
        records = np.empty(int(is_whole.sum()), _RECORD)
        records["block"], records["name"] = valid[is_whole], self._entries["name"][valid[is_whole]]
        return records.tobytes()

    def _is_whole(self, block: int) -> bool:
        entry = self._entries[block]
        return bool(entry["checksum"] == self._checksum(block, entry["name"].tobytes()))

    def _checksum(self, block: int, name: bytes) -> int:
        """The checksum of the bytes and the name, so that a damaged name is found, too."""
        return int.from_bytes(xxh3(xxh3(self._bytes[block]) + name)[:8])


def _whole_pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
