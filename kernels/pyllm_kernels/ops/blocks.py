"""Copies of whole blocks of the KV cache."""

from pyllm_kernels import cpu, paged_reference
from pyllm_kernels.op import op
from pyllm_kernels.tensors import Tensor


@op(reference=paged_reference.copy_blocks, triton="pyllm_kernels.gpu.blocks")
def copy_blocks(key_cache: Tensor, value_cache: Tensor, copies: Tensor) -> None:
    """Copy whole blocks within both caches, one after the other; copies int32 [n, 2] of (source, destination)."""
    cpu.copy_blocks(key_cache, value_cache, copies)


@op(reference=paged_reference.swap_blocks, triton="pyllm_kernels.paged_reference")
def swap_blocks(cache: Tensor, host_blocks: Tensor, swaps: Tensor) -> None:
    """Copy whole blocks, all layers of each, between the cache and host memory.

    - cache [layers, 2, num_blocks, *block], the keys and the values of each layer.
    - host_blocks [num_host_blocks, layers, 2, *block], of cache's dtype: all layers of a block are contiguous.
    - swaps int32 [n, 3] in host memory, of (direction, device block, host block). First all swaps of direction 0
      copy from device to host, then all swaps of direction 1 from host to device, each in the given order.

    With pinned host_blocks, a CUDA device does this in the order of its stream and the caller does not wait: only ops
    on the same stream may use either side then.
    """
    paged_reference.swap_blocks(cache, host_blocks, swaps)


@op(reference=paged_reference.gather_blocks, triton="pyllm_kernels.gpu.blocks")
def gather_blocks(cache: Tensor, staged: Tensor, blocks: Tensor) -> None:
    """Copy some blocks of the cache, all layers of each, to contiguous memory.

    - cache [layers, 2, num_blocks, *block], the keys and the values of each layer.
    - staged [n, layers, 2, *block], of cache's dtype and contiguous.
    - blocks int32 [n] of any stride, the block of the cache for each block of staged.
    """
    paged_reference.gather_blocks(cache, staged, blocks)


@op(reference=paged_reference.scatter_blocks, triton="pyllm_kernels.gpu.blocks")
def scatter_blocks(cache: Tensor, staged: Tensor, blocks: Tensor) -> None:
    """The reverse of `gather_blocks`: from staged to the cache. No block may occur twice."""
    paged_reference.scatter_blocks(cache, staged, blocks)
