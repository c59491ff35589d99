"""Swaps of a cache on a GPU: copies over PCIe on a separate stream, beside the steps.

Knows neither why a block moves nor the computation of a step; steps are on the current stream.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from pyllm_kernels import Kernels
from pyllm_kernels.ops.blocks import gather_blocks, scatter_blocks
from torch import Tensor

from pyllm.workers.step.batch import IntArray

_STAGED_BYTES = 64 << 20


class SwapStream:
    """Moves blocks of `cache` to and from `host_blocks`, which is pinned, and never makes the host wait.

    - cache [layers, 2, num_blocks, *block]; host_blocks [num_host_blocks, layers, 2, *block].

    Each direction has a buffer of `num_staged` blocks. For a swap to the host, the current stream gathers the blocks
    into a buffer, and may then overwrite them; this stream copies the buffer to the host beside the step. For a swap
    from the host, this stream fills the other buffer beside earlier steps, and the current stream scatters it. Only
    this stream touches the host blocks, so a step may swap in blocks that any earlier step has swapped out.

    `cuda` has the streams and events of `torch.cuda`.
    """

    def __init__(
        self, cache: Tensor, host_blocks: Tensor, kernels: Kernels, num_staged: int, cuda: Any = torch.cuda
    ) -> None:
        self._cache = cache
        self._host_blocks = host_blocks
        self._kernels = kernels
        self._num_staged = num_staged
        self._cuda = cuda
        room = (2, num_staged, *host_blocks.shape[1:])
        self._outgoing, self._incoming = torch.empty(room, dtype=cache.dtype, device=cache.device)
        self._stream = cuda.Stream(cache.device)
        # An event stands for its last record, and one without a record is not waited for.
        self._gathered, self._stored, self._loaded, self._scattered = (cuda.Event() for _ in range(4))
        self._scattered.record(self._main())  # The current stream may still use the memory of the buffers.

    def swap(self, swaps: IntArray, on_device: Tensor) -> None:
        """Do a plan's swaps, first those to the host; no device block and no host block may be written twice.

        - swaps int32 [swaps, 3], of (direction, device block, host block), direction 0 first; on_device is the same on
          the device.

        Swaps from the host do not wait for swaps to it, unless they use the same host block.
        """
        blocks, host_blocks = on_device[:, 1], swaps[:, 2]
        num_out = int(np.count_nonzero(swaps[:, 0] == 0))
        outs, ins = self._rounds(0, num_out), self._rounds(num_out, len(swaps))
        in_order = bool(np.isin(host_blocks[num_out:], host_blocks[:num_out]).any())
        for part in outs:
            self._gather(blocks[part])
            if in_order or part != outs[-1]:  # The next part needs the buffer.
                self._store(host_blocks[part])
        for part in ins:
            self._load(host_blocks[part])
            self._scatter(blocks[part])
        if outs and not in_order:
            self._store(host_blocks[outs[-1]])

    def stored(self) -> Any:
        """An event after which all blocks swapped out so far are in the host blocks."""
        event = self._cuda.Event()
        event.record(self._stream)
        return event

    def _gather(self, blocks: Tensor) -> None:
        main = self._main()
        main.wait_event(self._stored)
        self._kernels[gather_blocks](self._cache, self._outgoing[: len(blocks)], blocks)
        self._gathered.record(main)

    def _store(self, host_blocks: IntArray) -> None:
        self._stream.wait_event(self._gathered)
        with self._cuda.stream(self._stream):
            for on_host, staged in _runs(host_blocks):
                self._host_blocks[on_host].copy_(self._outgoing[staged], non_blocking=True)
        self._stored.record(self._stream)

    def _load(self, host_blocks: IntArray) -> None:
        self._stream.wait_event(self._scattered)
        with self._cuda.stream(self._stream):
            for on_host, staged in _runs(host_blocks):
                self._incoming[staged].copy_(self._host_blocks[on_host], non_blocking=True)
        self._loaded.record(self._stream)

    def _scatter(self, blocks: Tensor) -> None:
        main = self._main()
        main.wait_event(self._loaded)
        self._kernels[scatter_blocks](self._cache, self._incoming[: len(blocks)], blocks)
        self._scattered.record(main)

    def _rounds(self, start: int, end: int) -> list[slice]:
        """The range in parts that fit into the buffers."""
        return [slice(at, min(at + self._num_staged, end)) for at in range(start, end, self._num_staged)]

    def _main(self) -> Any:
        return self._cuda.current_stream(self._cache.device)


def staged_blocks(num_host_blocks: int, block_bytes: int) -> int:
    """The number of blocks in each of the two buffers of a `SwapStream`: 64 MiB, but no more than the host has."""
    return min(num_host_blocks, max(1, _STAGED_BYTES // block_bytes))


def staging_bytes(num_host_blocks: int, block_bytes: int) -> int:
    """The device memory of both buffers."""
    return 2 * staged_blocks(num_host_blocks, block_bytes) * block_bytes


def pin(memory: npt.NDArray[Any], device: torch.device) -> Callable[[], object]:
    """Pin host memory for copies to and from a GPU; call the result before the memory is freed."""
    with torch.cuda.device(device):
        # torch's `pin_memory` rounds up to a power of two: a pool of 20 GiB would take 32.
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch gives its runtime no types.
        torch.cuda.check_error(runtime.cudaHostRegister(memory.ctypes.data, memory.nbytes, 0))
    return partial(runtime.cudaHostUnregister, memory.ctypes.data)


def _runs(host_blocks: IntArray) -> Iterator[tuple[slice, slice]]:
    """Runs of adjacent host blocks, and their parts of the buffer: one copy for each run."""
    ends = [*(np.flatnonzero(np.diff(host_blocks) != 1) + 1).tolist(), len(host_blocks)]
    for start, end in pairwise([0, *ends]):
        first = int(host_blocks[start])
        yield slice(first, first + end - start), slice(start, end)
