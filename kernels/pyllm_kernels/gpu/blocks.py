"""Copies of whole cache blocks, within the cache and to contiguous memory. Does not know why blocks move."""
# Triton traces a kernel's text: its arguments have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import torch
import triton
import triton.language as tl
from torch import Tensor

from pyllm_kernels.integers import ceil_div

_BLOCK = 512


def copy_blocks(key_cache: Tensor, value_cache: Tensor, copies: Tensor) -> None:
    if not copies.shape[0]:
        return
    if key_cache.element_size() == 1:  # as bytes, without conversion
        key_cache, value_cache = key_cache.view(torch.uint8), value_cache.view(torch.uint8)
    block_elements = key_cache[0].numel()
    grid = (ceil_div(block_elements, _BLOCK),)
    _copy_blocks_kernel[grid](
        key_cache,
        value_cache,
        copies,
        copies.shape[0],
        BLOCK_ELEMENTS=block_elements,
        BLOCK=_BLOCK,
        num_warps=4,
        enable_fp_fusion=True,
    )


def swap_blocks(cache: Tensor, host_blocks: Tensor, swaps: Tensor) -> None:
    """Copy over PCIe, which needs no kernel."""
    moves = swaps.tolist()
    for direction, device, host in moves:
        if direction == 0:
            host_blocks[host].copy_(cache[:, :, device], non_blocking=True)
    for direction, device, host in moves:
        if direction == 1:
            cache[:, :, device].copy_(host_blocks[host], non_blocking=True)


def gather_blocks(cache: Tensor, staged: Tensor, blocks: Tensor) -> None:
    _stage_blocks(cache, staged, blocks, to_cache=False)


def scatter_blocks(cache: Tensor, staged: Tensor, blocks: Tensor) -> None:
    _stage_blocks(cache, staged, blocks, to_cache=True)


def _stage_blocks(cache: Tensor, staged: Tensor, blocks: Tensor, *, to_cache: bool) -> None:
    if not blocks.shape[0]:
        return
    if cache.element_size() == 1:  # as above
        cache, staged = cache.view(torch.uint8), staged.view(torch.uint8)
    num_layers, keys_and_values, num_blocks = cache.shape[:3]
    block_elements = staged[0, 0, 0].numel()
    grid = (ceil_div(block_elements, _BLOCK), num_layers * keys_and_values, blocks.shape[0])
    _stage_blocks_kernel[grid](
        cache,
        staged,
        blocks,
        blocks.stride(0),
        num_blocks,
        BLOCK_ELEMENTS=block_elements,
        TO_CACHE=to_cache,
        BLOCK=_BLOCK,
        num_warps=4,
        enable_fp_fusion=True,
    )


@triton.jit(do_not_specialize=["num_copies"])
def _copy_blocks_kernel(
    key_cache_ptr, value_cache_ptr, copies_ptr, num_copies, BLOCK_ELEMENTS: tl.constexpr, BLOCK: tl.constexpr
):
    # A program copies the same piece of every block, in the given order, so that a block
    # may be the source of one copy and the destination of another.
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < BLOCK_ELEMENTS
    for index in range(num_copies):
        source = tl.load(copies_ptr + 2 * index).to(tl.int64) * BLOCK_ELEMENTS + columns
        destination = tl.load(copies_ptr + 2 * index + 1).to(tl.int64) * BLOCK_ELEMENTS + columns
        key = tl.load(key_cache_ptr + source, mask=mask)
        value = tl.load(value_cache_ptr + source, mask=mask)
        tl.store(key_cache_ptr + destination, key, mask=mask)
        tl.store(value_cache_ptr + destination, value, mask=mask)


# A step's block ids may begin anywhere in its plan, so do not specialise on their alignment.
@triton.jit(do_not_specialize=["blocks_ptr", "blocks_stride", "num_blocks"])
def _stage_blocks_kernel(
    cache_ptr,
    staged_ptr,
    blocks_ptr,
    blocks_stride,
    num_blocks,
    BLOCK_ELEMENTS: tl.constexpr,
    TO_CACHE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < BLOCK_ELEMENTS
    part, row = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)  # keys or values of a layer, staged block
    block = tl.load(blocks_ptr + row * blocks_stride)
    cells = cache_ptr + (part * num_blocks + block) * BLOCK_ELEMENTS + columns
    staged = staged_ptr + (row * tl.num_programs(1) + part) * BLOCK_ELEMENTS + columns
    if TO_CACHE:
        tl.store(cells, tl.load(staged, mask=mask), mask=mask)
    else:
        tl.store(staged, tl.load(cells, mask=mask), mask=mask)
