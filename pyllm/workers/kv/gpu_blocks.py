"""The KV cache of a rank on a GPU as numbered blocks, like `CpuBlocks`: copied beside the steps by pinned memory."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from pyllm.workers.kv.kv_cache import KVCache

_STAGED_BYTES = 16 << 20


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
