"""Copies of whole cache blocks. It does not know why a block is copied, nor who shares it."""
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
    if key_cache.element_size() == 1:  # Bytes are bytes: nothing is converted.
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


@triton.jit(do_not_specialize=["num_copies"])
def _copy_blocks_kernel(
    key_cache_ptr, value_cache_ptr, copies_ptr, num_copies, BLOCK_ELEMENTS: tl.constexpr, BLOCK: tl.constexpr
):
    # A program owns the same piece of every block and copies it in the order given, so that a block
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
