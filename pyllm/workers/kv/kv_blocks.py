"""The KV cache of a rank as numbered blocks, which a connector copies from and to the host beside the steps.

Can track the written blocks. Knows neither connectors nor the blocks of a step.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from pyllm.kv_transfer import KVBlocks
from pyllm.workers.kv.kv_cache import KVCache
from pyllm.workers.step.attention_batch import Ints

_STAGED_BYTES = 16 << 20


class CpuBlocks:
    """The blocks of a cache in the host's memory, copied by the calling thread.

    A block's bytes are [layers of a group, 2, block_size, kv_heads, head_dim], without gaps.
    """

    def __init__(self, cache: KVCache) -> None:
        # numpy copies without torch's threads, which would wait for the threads of the step.
        self._memory = cache.memory.view(torch.uint8).numpy()  # [layers, 2, num_blocks, ...]
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


class GpuBlocks:
    """The blocks of a cache on a GPU, copied on a separate stream through pinned memory.

    `cuda` has the streams and events of `torch.cuda`. A block's bytes are the same as in `CpuBlocks`.
    """

    def __init__(self, cache: KVCache, cuda: Any = torch.cuda) -> None:
        self._memory = cache.memory.view(torch.uint8)
        self._cuda = cuda
        self._stream = cuda.Stream(self._memory.device)
        self._computed = cuda.Event()
        self._computed.record(cuda.current_stream(self._memory.device))
        self._shape = (*self._memory.shape[:2], *self._memory.shape[3:])
        self._num_staged = max(1, _STAGED_BYTES // self.block_bytes)
        is_gpu = self._memory.device.type == "cuda"
        self._staged = torch.empty((self._num_staged, *self._shape), dtype=torch.uint8, pin_memory=is_gpu)
        self._lock = threading.Lock()  # guards the staged blocks

    @property
    def block_bytes(self) -> int:
        """See `KVBlocks.block_bytes`."""
        return int(np.prod(self._shape))

    def begin(self) -> None:
        """Make copies wait for the steps launched before, which may still write these blocks."""
        self._computed.record(self._cuda.current_stream(self._memory.device))

    @torch.inference_mode()
    def read(self, blocks: Sequence[int], into: Sequence[memoryview]) -> None:
        """See `KVBlocks.read`."""
        for pairs in self._rounds(blocks, into):
            staged = self._staged[: len(pairs)]
            with self._lock:
                with self._cuda.stream(self._stream):
                    self._stream.wait_event(self._computed)
                    gathered = self._memory.index_select(2, self._numbers([block for block, _ in pairs]))
                    staged.copy_(gathered.movedim(2, 0).contiguous(), non_blocking=True)
                self._stream.synchronize()
                for row, (_, buffer) in zip(staged.numpy(), pairs, strict=True):
                    np.copyto(np.frombuffer(buffer, np.uint8).reshape(self._shape), row)

    @torch.inference_mode()
    def write(self, blocks: Sequence[int], source: Sequence[memoryview]) -> None:
        """See `KVBlocks.write`."""
        for pairs in self._rounds(blocks, source):
            staged = self._staged[: len(pairs)]
            with self._lock:
                for row, (_, buffer) in zip(staged.numpy(), pairs, strict=True):
                    np.copyto(row, np.frombuffer(buffer, np.uint8).reshape(self._shape))
                with self._cuda.stream(self._stream):
                    self._stream.wait_event(self._computed)
                    contents = staged.to(self._memory.device, non_blocking=True).movedim(0, 2)
                    self._memory.index_copy_(2, self._numbers([block for block, _ in pairs]), contents)
                self._stream.synchronize()

    def _rounds(self, blocks: Sequence[int], buffers: Sequence[memoryview]) -> Iterator[list[tuple[int, memoryview]]]:
        pairs = list(zip(blocks, buffers, strict=True))
        return (pairs[start : start + self._num_staged] for start in range(0, len(pairs), self._num_staged))

    def _numbers(self, blocks: Sequence[int]) -> torch.Tensor:
        return torch.tensor(blocks, dtype=torch.int64).to(self._memory.device)


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
