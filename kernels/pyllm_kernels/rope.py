"""Rotary position embedding fused with the write into the paged cache: one program handles one token.

It does not know attention, nor how the table of cosines and sines was scaled.
"""
# Triton traces a kernel's text: its arguments have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl
from torch import Tensor


def rope_and_kv_write(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    slot_mapping: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
) -> None:
    tokens, heads, head_dim = query.shape
    kv_heads = key.shape[1]
    _rope_and_kv_write_kernel[(tokens,)](
        query,
        key,
        value,
        positions,
        cos_sin,
        slot_mapping,
        key_cache,
        value_cache,
        query.stride(0),
        key.stride(0),
        value.stride(0),
        HEADS=heads,
        KV_HEADS=kv_heads,
        HALF=head_dim // 2,
        BLOCK_HEADS=triton.next_power_of_2(heads),
        BLOCK_KV_HEADS=triton.next_power_of_2(kv_heads),
        BLOCK_HALF=triton.next_power_of_2(head_dim // 2),
        num_warps=4,
        enable_fp_fusion=True,
    )


@triton.jit
def _rope_and_kv_write_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    positions_ptr,
    cos_sin_ptr,
    slot_mapping_ptr,
    key_cache_ptr,
    value_cache_ptr,
    query_stride,
    key_stride,
    value_stride,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_KV_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    position = tl.load(positions_ptr + token).to(tl.int64)
    slot = tl.load(slot_mapping_ptr + token).to(tl.int64)
    columns = tl.arange(0, BLOCK_HALF)
    cos_ptrs = cos_sin_ptr + position * 2 * HALF + columns
    cos = tl.load(cos_ptrs, mask=columns < HALF, other=0.0)[None, :]
    sin = tl.load(cos_ptrs + HALF, mask=columns < HALF, other=0.0)[None, :]

    heads = tl.arange(0, BLOCK_HEADS)
    mask = (heads < HEADS)[:, None] & (columns < HALF)[None, :]
    first_ptrs = query_ptr + token * query_stride + heads[:, None] * 2 * HALF + columns[None, :]
    first, second = _rotate(first_ptrs, mask, cos, sin, HALF)  # [BLOCK_HEADS, BLOCK_HALF] each
    tl.store(first_ptrs, first, mask=mask)
    tl.store(first_ptrs + HALF, second, mask=mask)

    kv_heads = tl.arange(0, BLOCK_KV_HEADS)
    mask = (kv_heads < KV_HEADS)[:, None] & (columns < HALF)[None, :]
    offsets = kv_heads[:, None] * 2 * HALF + columns[None, :]
    first_ptrs = key_ptr + token * key_stride + offsets
    first, second = _rotate(first_ptrs, mask, cos, sin, HALF)
    tl.store(first_ptrs, first, mask=mask)
    tl.store(first_ptrs + HALF, second, mask=mask)

    if slot >= 0:
        cache_offsets = slot * KV_HEADS * 2 * HALF + offsets
        tl.store(key_cache_ptr + cache_offsets, first, mask=mask)
        tl.store(key_cache_ptr + cache_offsets + HALF, second, mask=mask)
        value_ptrs = value_ptr + token * value_stride + offsets
        tl.store(value_cache_ptr + cache_offsets, tl.load(value_ptrs, mask=mask), mask=mask)
        tl.store(value_cache_ptr + cache_offsets + HALF, tl.load(value_ptrs + HALF, mask=mask), mask=mask)


@triton.jit
def _rotate(first_ptrs, mask, cos, sin, HALF: tl.constexpr):
    first = tl.load(first_ptrs, mask=mask, other=0.0)
    second = tl.load(first_ptrs + HALF, mask=mask, other=0.0)
    wide_first, wide_second = first.to(tl.float32), second.to(tl.float32)
    rotated_first = wide_first * cos - wide_second * sin
    rotated_second = wide_second * cos + wide_first * sin
    return rotated_first.to(first.dtype), rotated_second.to(first.dtype)
