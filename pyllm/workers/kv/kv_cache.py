"""The paged KV cache of one rank and its swap space on the host: sizes, memory, swaps.

Knows neither sequences (block tables are in `workers/step/slots.py`) nor why a block moves.
"""

import logging
import math
import mmap
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from pyllm_kernels import Kernels
from pyllm_kernels.ops.blocks import swap_blocks
from pyllm_kernels.tensors import Array, Tensor, numpy_dtype

from pyllm.errors import ConfigError, ProtocolError
from pyllm.families.kv_layout import KVGroup, plane_heads, planes_of_block
from pyllm.families.spec import ModelSpec
from pyllm.machine.memory import Memory, host_memory
from pyllm.wire.plan_layout import SWAP_NAME_SIZE
from pyllm.workers.devices.device import Device
from pyllm.workers.devices.host import HostDevice
from pyllm.workers.kv.host_tier import HostTier
from pyllm.workers.step.batch import IntArray

if TYPE_CHECKING:
    from pyllm.workers.kv.swap_stream import SwapStream

logger = logging.getLogger(__name__)

_TIMED_SWAPS, _TIMED_ROUNDS = 32, 5


@dataclass(frozen=True, slots=True)
class KVCacheShape:
    """The shape of one rank's KV cache: the layers of the largest group, and this rank's key and value heads.

    With layers of unequal heads these are planes (`families/kv_layout.py`) and the heads of one. `num_vectors` is 2, or
    1 where the values of a token are in its keys.
    """

    num_layers: int
    block_size: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    num_vectors: int = 2

    @classmethod
    def of(cls, spec: ModelSpec, block_size: int, ranks: int, dtype: str, groups: Sequence[KVGroup] = ()) -> Self:
        """The shape on each of `ranks` equal ranks; without `groups`, all layers are one group of equal heads.

        The `groups` of a pipeline stage have only its layers.
        """
        num_layers = planes_of_block(groups) if groups else len(spec.layers)
        return cls(num_layers, block_size, *plane_heads(spec, ranks), dtype, spec.attention.cached_vectors)

    @property
    def block_shape(self) -> tuple[int, ...]:
        """The shape of one block on the host, keys and values of all layers of a group together."""
        return self.num_layers, self.num_vectors, self.block_size, self.num_kv_heads, self.head_dim

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, keys and values of all layers of a group together."""
        return math.prod(self.block_shape) * numpy_dtype(self.dtype).itemsize


class CachedLayer(NamedTuple):
    """The group, keys and values of a layer of the model; both [num_blocks, block_size, kv_heads, head_dim].

    Blocks are apart in arrays of numpy, and where several layers share a plane. Both are the same tensor where the
    values of a token are in its keys.
    """

    group: int
    keys: Tensor
    values: Tensor


class KVCache:
    """Keys and values of `num_blocks` blocks, each of which belongs to one group of layers at a time.

    - `memory`: [planes, 2, num_blocks, block_size, kv_heads, head_dim]; 1 in place of 2 for latents. In an
      array of numpy a block's planes are together: few blocks in use take few huge pages, and a swap is one copy.
    - `layers`: the group and the tensors of each layer, by its index in the model.

    The memory starts as zeros, because padded reads of blocks that were never written must find finite numbers.
    """

    def __init__(self, shape: KVCacheShape, num_blocks: int, device: Device, groups: Sequence[KVGroup] = ()) -> None:
        self.device = device
        self.num_blocks, self.block_size = num_blocks, shape.block_size
        self.shape = shape
        heads = (shape.num_kv_heads, shape.head_dim)
        groups = groups or (KVGroup(None, tuple(range(shape.num_layers)), heads),)
        size = (shape.num_layers, shape.num_vectors, num_blocks, shape.block_size, *heads)
        if isinstance(device, HostDevice):
            self.memory: Tensor = _blocks_apart(shape, num_blocks)
        elif device.type == "cpu":
            self.memory = device.from_host(_untouched_zeros(size, shape.dtype))
        else:
            self.memory = device.zeros(size, shape.dtype)
        self.layers = {
            layer: CachedLayer(number, *self._keys_and_values(group, index))
            for number, group in enumerate(groups)
            for index, layer in enumerate(group.layers)
        }

    def _keys_and_values(self, group: KVGroup, index: int) -> tuple[Tensor, Tensor]:
        """The memory of one of the group's layers."""
        plane = self.memory[index // group.layers_of_plane]
        if group.layers_of_plane == 1:
            return plane[0], plane[-1]
        shape = (len(plane), self.num_blocks, group.layers_of_plane, self.block_size, *group.heads)
        own = plane.reshape(shape)[:, :, index % group.layers_of_plane]
        return own[0], own[-1]


class HostPool:
    """Host memory for `num_blocks` blocks of a cache, and the swaps between the two.

    `memory` is [num_blocks, *`KVCacheShape.block_shape`]: unlike in a GPU's cache, all layers of a block are together,
    so that a block, or a run of blocks, crosses PCIe in one copy. If the cache is on a GPU, the memory is pinned and a
    `SwapStream` does the swaps; on a CPU pages are allocated at their first write. With a `tier` it is all or a part of
    the tier's memory, and swapped-out blocks are validated there once their copies are complete.
    """

    def __init__(
        self,
        cache: KVCache,
        num_blocks: int,
        kernels: Kernels,
        clock: Callable[[], float] = time.perf_counter,
        *,
        tier: HostTier | None = None,
    ) -> None:
        self.num_blocks = num_blocks
        self._tier = tier
        self._clock = clock
        self._cache = cache
        self._kernels = kernels
        num_layers, keys_and_values, _, *block = cache.memory.shape
        if tier is None:
            self.memory = np.empty((num_blocks, num_layers, keys_and_values, *block), numpy_dtype(cache.shape.dtype))
        else:
            self.memory = tier.blocks[:num_blocks]
        self._stream: SwapStream | None = None
        if cache.device.type == "cuda":
            from pyllm_kernels.torch_bridge import as_tensor

            from pyllm.workers.kv import swap_stream

            weakref.finalize(self, swap_stream.pin(self.memory, cache.memory.device))
            num_staged = swap_stream.staged_blocks(num_blocks, self.memory[0].nbytes)
            self._stream = swap_stream.SwapStream(cache.memory, as_tensor(self.memory), kernels, num_staged)

    def swap(self, swaps: IntArray, on_device: Tensor, names: npt.NDArray[np.uint8]) -> None:
        """Do a plan's swaps: first the swaps to the host, then the swaps from it.

        - swaps int32 [swaps, 3], of (direction, device block, host block); on_device is the same on the device.
        - names uint8 [40 * swaps to the host], the plan's `swap_names`.

        Raises:
            ProtocolError: a direction or a block does not exist, a swap from the host comes before one to it, or the
                number of names is not that of swaps to the host.
        """
        check_swaps(swaps, names, self._cache.num_blocks, self.num_blocks, "block")
        outs = swaps[swaps[:, 0] == 0, 2]
        if self._tier is None or not len(outs):
            self._copy(swaps, on_device)
            return
        writes = self._tier.begin(outs)
        self._copy(swaps, on_device)
        if self._stream is None:
            self._tier.finish(outs, names, writes)
        else:  # The plan's memory is reused before the copies end.
            self._tier.finish_after(self._stream.stored(), outs.copy(), names.copy(), writes)

    def _copy(self, swaps: IntArray, on_device: Tensor) -> None:
        if self._stream is None:
            self._kernels[swap_blocks](self._cache.memory, self.memory, on_device)
        else:
            self._stream.swap(swaps, on_device)

    def time_swaps(self) -> float:
        """Measure the seconds to swap one block out and in again. Only for an empty pool."""
        num_swaps = min(_TIMED_SWAPS, self._cache.num_blocks, self.num_blocks)
        swaps = np.array([(way, block, block) for way in (0, 1) for block in range(num_swaps)], np.int32)
        on_device = self._cache.device.from_host(swaps)
        names = np.zeros(num_swaps * SWAP_NAME_SIZE, np.uint8)  # names that no request can match
        seconds = []
        for _ in range(_TIMED_ROUNDS):
            started = self._clock()
            self.swap(swaps, on_device, names)
            self._cache.device.synchronize()
            seconds.append(self._clock() - started)
        if self._tier is not None:
            self._tier.forget()
        return min(seconds) / num_swaps


def check_swaps(swaps: IntArray, names: npt.NDArray[np.uint8], num_on_device: int, num_on_host: int, kind: str) -> None:
    """Refuse swaps, int32 [swaps, 3] of (direction, device block, host block), that no plan can have. `kind`: of what.

    Raises:
        ProtocolError: a direction or a block does not exist, a swap from the host comes before one to it, or the
            number of names is not that of swaps to the host.
    """
    wrong = ((swaps < 0) | (swaps >= (2, num_on_device, num_on_host))).any(axis=1)
    if wrong.any():
        raise ProtocolError(
            f"the plan has the swap {swaps[wrong][0].tolist()} (direction, device {kind}, host {kind}), but there "
            f"are {num_on_device} device {kind}s, {num_on_host} host {kind}s, and the directions 0 and 1"
        )
    if (np.diff(swaps[:, 0]) < 0).any():
        raise ProtocolError("the plan has a swap from the host before one to it")
    num_outs = int(np.count_nonzero(swaps[:, 0] == 0))
    if len(names) != num_outs * SWAP_NAME_SIZE:
        raise ProtocolError(f"the plan has {len(names)} bytes of names for {num_outs} swaps to the host")


def host_blocks_of_rank(
    size: int, ranks: int, block_bytes: int, read: Callable[[], list[Memory]] = host_memory, *, held: int = 0
) -> int:
    """The number of blocks for each of `ranks` in `size` bytes of host memory for all of them together.

    `held` bytes of it are already in use.

    Raises:
        ConfigError: not one block fits, or the machine or a control group has less memory in total.
    """
    num_blocks = size // ranks // max(1, block_bytes)  # 0 without a layer with attention
    if size and not num_blocks:
        raise ConfigError(
            f"kv_offloading_size of {size:,} bytes has no room for a block of {block_bytes:,} bytes on each of {ranks} "
            f"rank(s): give at least {ranks * block_bytes:,} bytes, or 0 for no swap space"
        )
    for memory in read() if size else []:
        if size > memory.total:
            raise ConfigError(
                f"kv_offloading_size of {size:,} bytes is more than the {memory.total:,} bytes of memory that "
                f"{memory.owner} has: give less"
            )
        if size - held > memory.available:  # This may change, and must not stop the replacement of a dead worker.
            left = memory.available
            logger.warning(
                "kv_offloading_size is %d bytes, but %s has only %d bytes of memory left", size, memory.owner, left
            )
    return num_blocks


def _blocks_apart(shape: KVCacheShape, num_blocks: int) -> Array:
    """The memory of a cache whose blocks are contiguous, and apart by the size of a token.

    At a distance of a power of two, the same layer of many blocks would compete for a few sets of the CPU's caches: 6 %
    of decode's attention in a model of 1B. Blocks of fewer than 64 tokens, counted in all planes, have no gap.
    """
    width, token = math.prod(shape.block_shape), shape.num_kv_heads * shape.head_dim
    gap = token if width >= 64 * token else 0
    blocks = _untouched_zeros((num_blocks, width + gap), shape.dtype)[:, :width]
    return np.moveaxis(blocks.reshape(num_blocks, *shape.block_shape), 0, 2)


def _untouched_zeros(shape: tuple[int, ...], dtype: str) -> Array:
    """Zeros that take no memory until they are touched: the kernel maps their pages one by one."""
    size = math.prod(shape) * numpy_dtype(dtype).itemsize
    if not size:  # without a layer with attention
        return np.zeros(shape, numpy_dtype(dtype))
    # Not from the heap, which may clear memory and so touch it.
    try:
        memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        text = f"no memory for a KV cache of {size:,} bytes ({error}): set --kv-cache-memory-bytes to less"
        raise ConfigError(text) from None
    with suppress(OSError):  # Some kernels are built without huge pages.
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, numpy_dtype(dtype)).reshape(shape)
