"""The KV cache of a rank as numbered blocks, which a connector copies from and to the host beside the steps.

Can track the written blocks. Knows neither connectors nor the blocks of a step.
"""

import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from pyllm_kernels.host_copies import host_array
from pyllm_kernels.tensors import Array

from pyllm.kv_transfer import KVBlocks
from pyllm.workers.kv.kv_cache import KVCache
from pyllm.workers.kv.state_cache import StateCache
from pyllm.workers.step.attention_batch import Ints


class CpuBlocks:
    """The blocks of a cache in the host's memory, copied by the calling thread.

    A block's bytes are `KVCacheShape.block_shape`, without gaps. After all blocks come `states`, each as `state_blocks`
    blocks: its bytes, filled up with zeros.
    """

    def __init__(self, cache: KVCache, states: StateCache | None = None, state_blocks: int = 0) -> None:
        self._memory = host_array(cache.memory).view(np.uint8)  # [layers, num_vectors, num_blocks, ...]
        self._shape = (*self._memory.shape[:2], *self._memory.shape[3:])
        self._num_blocks, self._state_blocks = cache.num_blocks, state_blocks
        parts = [] if states is None else [part for layer in states.layers.values() for part in layer]
        self._parts = [part.reshape(len(part), -1).view(np.uint8) for part in parts]  # of all states, [states, bytes]

    @property
    def block_bytes(self) -> int:
        """See `KVBlocks.block_bytes`."""
        return int(np.prod(self._shape))

    def begin(self) -> None:
        """Do nothing: when the thread of the steps calls this, no step is being computed."""

    def read(self, blocks: Sequence[int], into: Sequence[memoryview]) -> None:
        """See `KVBlocks.read`."""
        for block, buffer in zip(blocks, into, strict=True):
            held = np.frombuffer(buffer, np.uint8)
            if block < self._num_blocks:
                np.copyto(held.reshape(self._shape), self._memory[:, :, block])
            else:
                held[:] = 0
                for of_buffer, of_state in self._shares(block, held):
                    of_buffer[:] = of_state

    def write(self, blocks: Sequence[int], source: Sequence[memoryview]) -> None:
        """See `KVBlocks.write`."""
        for block, buffer in zip(blocks, source, strict=True):
            held = np.frombuffer(buffer, np.uint8)
            if block < self._num_blocks:
                np.copyto(self._memory[:, :, block], held.reshape(self._shape))
            else:
                for of_buffer, of_state in self._shares(block, held):
                    of_state[:] = of_buffer

    def _shares(self, block: int, buffer: Array) -> Iterator[tuple[Array, Array]]:
        """The parts of a buffer and those of a state with the same bytes, for one of the state's blocks."""
        state, place = divmod(block - self._num_blocks, self._state_blocks)
        start = -place * len(buffer)  # of a part, in the buffer
        for part in self._parts:
            size = part.shape[1]
            first, last = max(0, start), min(len(buffer), start + size)
            if first < last:
                yield buffer[first:last], part[state, first - start : last - start]
            start += size


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
