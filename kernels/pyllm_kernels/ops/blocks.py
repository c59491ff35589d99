"""Copies of whole blocks of the KV cache."""

import numpy as np

from pyllm_kernels import _cpu, graph
from pyllm_kernels.op import op
from pyllm_kernels.tensors import Array, Tensor, is_array


def _copy_blocks(key_cache: Array, value_cache: Array, copies: Array) -> None:
    for source, destination in copies.tolist():
        key_cache[destination] = key_cache[source]
        value_cache[destination] = value_cache[source]


@op(reference=_copy_blocks, triton="pyllm_kernels.gpu.blocks")
def copy_blocks(key_cache: Tensor, value_cache: Tensor, copies: Tensor) -> None:
    """Copy whole blocks within both caches, one after the other; copies int32 [n, 2] of (source, destination).

    Both may be the same.
    """
    _cpu.ops.copy_blocks(key_cache, value_cache, copies)


def _swap_blocks(cache: Array, host_blocks: Array, swaps: Array) -> None:
    moves = swaps.tolist()
    for direction, device, host in moves:
        if direction == 0:
            host_blocks[host] = cache[:, :, device]
    for direction, device, host in moves:
        if direction == 1:
            cache[:, :, device] = host_blocks[host]


@op(reference=_swap_blocks, triton="pyllm_kernels.gpu.blocks")
def swap_blocks(cache: Tensor, host_blocks: Tensor, swaps: Tensor) -> None:
    """Copy whole blocks, all layers of each, between the cache and host memory.

    - cache [layers, 2, num_blocks, *block], the keys and the values of each layer; 1 for 2 where both are the same.
    - host_blocks [num_host_blocks, layers, 2, *block], of cache's dtype: all layers of a block are contiguous.
    - swaps int32 [n, 3] in host memory, of (direction, device block, host block). First all swaps of direction 0
      copy from device to host, then all swaps of direction 1 from host to device, each in the given order.

    With pinned host_blocks, a CUDA device does this in the order of its stream and the caller does not wait: only ops
    on the same stream may use either side then.
    """
    (_swap_blocks if is_array(cache) else graph.not_captured(swap_blocks))(cache, host_blocks, swaps)


def _gather_blocks(cache: Array, staged: Array, blocks: Array) -> None:
    staged[...] = np.moveaxis(cache[:, :, blocks], 2, 0)


@op(reference=_gather_blocks, triton="pyllm_kernels.gpu.blocks")
def gather_blocks(cache: Tensor, staged: Tensor, blocks: Tensor) -> None:
    """Copy some blocks of the cache, all layers of each, to contiguous memory.

    - cache [layers, 2, num_blocks, *block], the keys and the values of each layer; 1 for 2 where both are the same.
    - staged [n, layers, 2, *block], of cache's dtype and contiguous.
    - blocks int32 [n] of any stride, the block of the cache for each block of staged.
    """
    graph.not_captured(gather_blocks)(cache, staged, blocks)


def _scatter_blocks(cache: Array, staged: Array, blocks: Array) -> None:
    cache[:, :, blocks] = np.moveaxis(staged, 0, 2)


@op(reference=_scatter_blocks, triton="pyllm_kernels.gpu.blocks")
def scatter_blocks(cache: Tensor, staged: Tensor, blocks: Tensor) -> None:
    """The reverse of `gather_blocks`: from staged to the cache. No block may occur twice."""
    graph.not_captured(scatter_blocks)(cache, staged, blocks)
