"""Norm of query and key, rotary position embedding and the write into the paged cache: one program handles a token.

It does not know attention, nor how the table of cosines and sines was scaled.
"""
# Triton traces a kernel's text: its arguments have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import torch
import triton
import triton.language as tl
from torch import Tensor

from pyllm_kernels.metadata import KVScales, QKNorm


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
    tensors = query, key, value, positions, cos_sin, slot_mapping, key_cache, value_cache
    norm_rope_and_kv_write(None, KVScales(), *tensors)


def norm_rope_and_kv_write(
    norm: QKNorm | None,
    scales: KVScales,
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
        query if norm is None else norm.query_weight,
        key if norm is None else norm.key_weight,
        0.0 if norm is None else norm.epsilon,
        1 / scales.key,
        1 / scales.value,
        query.stride(0),
        key.stride(0),
        value.stride(0),
        NORM=norm is not None,
        FLOAT8=key_cache.dtype is torch.float8_e4m3fn,
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
    query_weight_ptr,
    key_weight_ptr,
    epsilon,
    key_factor,
    value_factor,
    query_stride,
    key_stride,
    value_stride,
    NORM: tl.constexpr,
    FLOAT8: tl.constexpr,
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
    # [BLOCK_HEADS, BLOCK_HALF] each
    first, second = _rotate(first_ptrs, mask, cos, sin, query_weight_ptr, epsilon, NORM, HALF, BLOCK_HALF)
    tl.store(first_ptrs, first, mask=mask)
    tl.store(first_ptrs + HALF, second, mask=mask)

    kv_heads = tl.arange(0, BLOCK_KV_HEADS)
    mask = (kv_heads < KV_HEADS)[:, None] & (columns < HALF)[None, :]
    offsets = kv_heads[:, None] * 2 * HALF + columns[None, :]
    first_ptrs = key_ptr + token * key_stride + offsets
    first, second = _rotate(first_ptrs, mask, cos, sin, key_weight_ptr, epsilon, NORM, HALF, BLOCK_HALF)
    tl.store(first_ptrs, first, mask=mask)
    tl.store(first_ptrs + HALF, second, mask=mask)

    if slot >= 0:
        cache_offsets = slot * KV_HEADS * 2 * HALF + offsets
        key_ptrs = key_cache_ptr + cache_offsets
        _store(key_ptrs, first, key_factor, mask, FLOAT8)
        _store(key_ptrs + HALF, second, key_factor, mask, FLOAT8)
        value_ptrs = value_ptr + token * value_stride + offsets
        cached_ptrs = value_cache_ptr + cache_offsets
        _store(cached_ptrs, tl.load(value_ptrs, mask=mask, other=0.0), value_factor, mask, FLOAT8)
        _store(cached_ptrs + HALF, tl.load(value_ptrs + HALF, mask=mask, other=0.0), value_factor, mask, FLOAT8)


@triton.jit
def _rotate(
    first_ptrs,
    mask,
    cos,
    sin,
    weight_ptr,
    epsilon,
    NORM: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    first = tl.load(first_ptrs, mask=mask, other=0.0)
    second = tl.load(first_ptrs + HALF, mask=mask, other=0.0)
    wide_first, wide_second = first.to(tl.float32), second.to(tl.float32)
    if NORM:
        squares = tl.sum(wide_first * wide_first, axis=1) + tl.sum(wide_second * wide_second, axis=1)
        inverse_rms = tl.rsqrt(squares / (2 * HALF) + epsilon)[:, None]
        columns = tl.arange(0, BLOCK_HALF)
        first_weight = tl.load(weight_ptr + columns, mask=columns < HALF, other=0.0).to(tl.float32)[None, :]
        second_weight = tl.load(weight_ptr + HALF + columns, mask=columns < HALF, other=0.0).to(tl.float32)[None, :]
        # Rounded as the norm alone would give it.
        wide_first = (wide_first * inverse_rms * first_weight).to(first.dtype).to(tl.float32)
        wide_second = (wide_second * inverse_rms * second_weight).to(first.dtype).to(tl.float32)
    rotated_first = wide_first * cos - wide_second * sin
    rotated_second = wide_second * cos + wide_first * sin
    return rotated_first.to(first.dtype), rotated_second.to(first.dtype)


@triton.jit
def _store(pointers, numbers, factor, mask, FLOAT8: tl.constexpr):
    """Into the cache, in its dtype: fp8 (e4m3) has no infinity, so what is too large becomes its largest number."""
    if FLOAT8:
        numbers = tl.clamp(numbers.to(tl.float32) * factor, -448.0, 448.0)
    tl.store(pointers, numbers.to(pointers.dtype.element_ty), mask=mask)
