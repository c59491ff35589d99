"""The KV cache of a rank as numbered blocks, which a connector copies from and to the host beside the steps.

Can track the written blocks. Knows neither connectors nor the blocks of a step.
"""

import threading
from collections.abc import Callable, Sequence

import numpy as np
from pyllm_kernels.host_copies import host_array

from pyllm.kv_transfer import KVBlocks
from pyllm.workers.kv.kv_cache import KVCache
from pyllm.workers.step.attention_batch import Ints


class CpuBlocks:
    """The blocks of a cache in the host's memory, copied by the calling thread.

    A block's bytes are `KVCacheShape.block_shape`, without gaps.
    """

    def __init__(self, cache: KVCache) -> None:
        self._memory = host_array(cache.memory).view(np.uint8)  # [layers, num_vectors, num_blocks, ...]
        self._shape = (*self._memory.shape[:2], *self._memory.shape[3:])

    @property
    def block_bytes(self) -> int:
        """See `KVBlocks.block_bytes`."""
        return int(np.prod(self._shape))

    def begin(self) -> None:
        """Do nothing: when the thread of the steps calls this, no step is being computed."""

    def read(self, blocks: Sequence[int], into: Sequence[memoryview]) -> None:
        """See `KVBlocks.read`."""
        for block, buffer in zip(blocks, into, strict=True):
            np.copyto(np.frombuffer(buffer, np.uint8).reshape(self._shape), self._memory[:, :, block])

    def write(self, blocks: Sequence[int], source: Sequence[memoryview]) -> None:
        """See `KVBlocks.write`."""
        for block, buffer in zip(blocks, source, strict=True):
            np.copyto(self._memory[:, :, block], np.frombuffer(buffer, np.uint8).reshape(self._shape))


class TrackedBlocks:
    """A `KVBlocks` that copies through `blocks`, and passes the numbers of written blocks to `blocks_written`.

    A connector reports the end of a load only after `write` has returned. So `tell_written` misses no block if you call
    it before a step reads the blocks.
    """

    def __init__(self, blocks: KVBlocks, blocks_written: Callable[[Ints], None]) -> None:
        self._blocks = blocks
        self._blocks_written = blocks_written
        self._lock = threading.Lock()
        self._written: set[int] = set()

    @property
    def block_bytes(self) -> int:
        """See `KVBlocks.block_bytes`."""
        return self._blocks.block_bytes

    def begin(self) -> None:
        """See `KVBlocks.begin`."""
        self._blocks.begin()

    def read(self, blocks: Sequence[int], into: Sequence[memoryview]) -> None:
        """See `KVBlocks.read`."""
        self._blocks.read(blocks, into)

    def write(self, blocks: Sequence[int], source: Sequence[memoryview]) -> None:
        """See `KVBlocks.write`."""
        try:
            self._blocks.write(blocks, source)
        finally:  # A write that fails may have changed some of them.
            with self._lock:
                self._written.update(blocks)

    def tell_written(self) -> None:
        """Call `blocks_written` on this thread with the blocks written since the last call: int32, ascending."""
        with self._lock:
            written, self._written = self._written, set()
        if written:
            self._blocks_written(np.array(sorted(written), np.int32))
