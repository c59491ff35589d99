"""Rotary position embedding, the norm of query and key before it or after, and the write into the paged cache.

A program handles a token, or some query heads of it where they have many numbers. Knows neither attention nor the
scaling of the table of cosines and sines.
"""
# Triton traces a kernel's text: its arguments have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from pyllm_kernels.integers import ceil_div, next_power_of_2
from pyllm_kernels.launcher import Constant, Launcher
from pyllm_kernels.metadata import UNSCALED, KVScales, QKNorm

_NUMBERS_AT_ONCE = 8192  # of the query in a program: more would not fit into registers


def rope_and_kv_write(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    slot_mapping: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    norm: QKNorm | None = None,
    scales: KVScales = UNSCALED,
    query_scales: Tensor | None = None,
) -> None:
    if query_scales is not None and norm is not None and norm.after_rotation:
        raise ValueError("a norm after the rotation would undo query_scales: give one of them")
    tokens, heads, head_dim = query.shape
    _, block_size, kv_heads, _ = key_cache.shape
    block_stride, token_stride, *_ = key_cache.stride()
    launch, programs = _launcher(
        heads,
        kv_heads,
        head_dim,
        value.shape[2],
        cos_sin.shape[1],
        block_size,
        block_stride // token_stride,
        norm is not None and not norm.after_rotation,
        norm is not None and norm.after_rotation,
        query_scales is not None,
        key_cache.dtype is torch.float8_e4m3fn,
        key_cache.data_ptr() == value_cache.data_ptr(),
    )
    tensors = (
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
        cos_sin if query_scales is None else query_scales,
    )
    numbers = (
        0.0 if norm is None else norm.epsilon,
        1 / scales.key,
        1 / scales.value,
        query.stride(0),
        key.stride(0),
        value.stride(0),
    )
    launch((tokens, programs, 1), tensors, numbers)


def rope(query: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
    tokens, heads, head_dim = query.shape
    launch, programs = _query_launcher(heads, head_dim, cos_sin.shape[1])
    launch((tokens, programs, 1), (query, positions, cos_sin), (query.stride(0),))


@functools.cache
def _launcher(
    heads: int,
    kv_heads: int,
    head_dim: int,
    value_dim: int,
    rotary_size: int,
    block_size: int,
    block_cells: int,
    norm_before: bool,
    norm_after: bool,
    query_scaled: bool,
    float8: bool,
    one_cache: bool,
) -> tuple[Launcher, int]:
    """The launcher, and its number of programs for a token."""
    sizes, programs = _sizes(heads, head_dim, rotary_size, is_whole=norm_before or norm_after or query_scaled)
    constants = sizes | {
        "NORM_BEFORE": norm_before,
        "NORM_AFTER": norm_after,
        "QUERY_SCALES": query_scaled,
        "FLOAT8": float8,
        "ONE_CACHE": one_cache,
        "KV_HEADS": kv_heads,
        "VALUE_DIM": value_dim,
        "BLOCK_SIZE": block_size,
        "BLOCK_CELLS": block_cells,
        "BLOCK_KV_HEADS": next_power_of_2(kv_heads),
    }
    return Launcher(_rope_and_kv_write_kernel, constants), programs


@functools.cache
def _query_launcher(heads: int, head_dim: int, rotary_size: int) -> tuple[Launcher, int]:
    sizes, programs = _sizes(heads, head_dim, rotary_size, is_whole=False)
    return Launcher(_rope_kernel, sizes), programs


def _sizes(heads: int, head_dim: int, rotary_size: int, *, is_whole: bool) -> tuple[dict[str, Constant], int]:
    """The kernels' constants, and the programs of a token. `is_whole`: dimensions that do not rotate change, too."""
    half, rest = next_power_of_2(max(rotary_size // 2, 1)), next_power_of_2(max(head_dim - rotary_size, 1))
    at_once = max(_NUMBERS_AT_ONCE // (2 * half + (rest if is_whole else 0)), 1)
    block_heads = min(next_power_of_2(heads), 1 << (at_once.bit_length() - 1))
    constants: dict[str, Constant] = {
        "HEADS": heads,
        "HEAD_DIM": head_dim,
        "HALF": rotary_size // 2,
        "REST": head_dim - rotary_size,
        "BLOCK_HEADS": block_heads,
        "BLOCK_HALF": half,
        "BLOCK_REST": rest,
        "num_warps": 4,
        "enable_fp_fusion": True,
    }
    return constants, ceil_div(heads, block_heads)


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
    query_scales_ptr,
    epsilon,
    key_factor,
    value_factor,
    query_stride,
    key_stride,
    value_stride,
    NORM_BEFORE: tl.constexpr,
    NORM_AFTER: tl.constexpr,
    QUERY_SCALES: tl.constexpr,
    FLOAT8: tl.constexpr,
    ONE_CACHE: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_CELLS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_KV_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr,
):
    """Handles one token. A head has two halves of HALF dimensions, which rotate, and REST dimensions, which do not."""
    token = tl.program_id(0).to(tl.int64)
    position = tl.load(positions_ptr + token).to(tl.int64)
    columns = tl.arange(0, BLOCK_HALF)
    rest_columns = 2 * HALF + tl.arange(0, BLOCK_REST)
    cos, sin = _rotation(cos_sin_ptr, position, HALF, BLOCK_HALF)
    factor = 1.0
    if QUERY_SCALES:
        factor = tl.load(query_scales_ptr + position)
    _rotate_queries(
        query_ptr + token * query_stride,
        cos,
        sin,
        factor,
        query_weight_ptr,
        epsilon,
        NORM_BEFORE,
        NORM_AFTER,
        QUERY_SCALES,
        HEADS,
        HEAD_DIM,
        HALF,
        REST,
        BLOCK_HEADS,
        BLOCK_HALF,
        BLOCK_REST,
    )
    if tl.program_id(1) > 0:
        return

    kv_heads = tl.arange(0, BLOCK_KV_HEADS)
    mask = (kv_heads < KV_HEADS)[:, None] & (columns < HALF)[None, :]
    rest_mask = (kv_heads < KV_HEADS)[:, None] & (rest_columns < HEAD_DIM)[None, :]
    row_ptrs = key_ptr + token * key_stride + kv_heads[:, None] * HEAD_DIM
    first, second, rest = _rotate(
        row_ptrs,
        mask,
        rest_mask,
        cos,
        sin,
        1.0,
        key_weight_ptr,
        epsilon,
        NORM_BEFORE,
        NORM_AFTER,
        False,
        REST > 0,
        HEAD_DIM,
        HALF,
        REST,
        BLOCK_HALF,
        BLOCK_REST,
    )
    tl.store(row_ptrs + columns[None, :], first, mask=mask)
    tl.store(row_ptrs + HALF + columns[None, :], second, mask=mask)
    if REST > 0 and (NORM_BEFORE or NORM_AFTER):
        tl.store(row_ptrs + rest_columns[None, :], rest, mask=rest_mask)

    slot = tl.load(slot_mapping_ptr + token).to(tl.int64)
    if slot >= 0:
        if BLOCK_CELLS != BLOCK_SIZE:
            slot = slot // BLOCK_SIZE * BLOCK_CELLS + slot % BLOCK_SIZE
        cell = (slot * KV_HEADS + kv_heads[:, None]) * HEAD_DIM
        here, there, last = columns[None, :], HALF + columns[None, :], rest_columns[None, :]
        key_ptrs = key_cache_ptr + cell
        _store(key_ptrs + here, first, key_factor, mask, FLOAT8)
        _store(key_ptrs + there, second, key_factor, mask, FLOAT8)
        if REST > 0:
            _store(key_ptrs + last, rest, key_factor, rest_mask, FLOAT8)
        if not ONE_CACHE:
            value_ptrs = value_ptr + token * value_stride + kv_heads[:, None] * VALUE_DIM
            cached_ptrs = value_cache_ptr + cell
            first_mask, second_mask = mask, mask
            if VALUE_DIM < HEAD_DIM:
                first_mask, second_mask = mask & (here < VALUE_DIM), mask & (there < VALUE_DIM)
                rest_mask = rest_mask & (last < VALUE_DIM)
            values = tl.load(value_ptrs + here, mask=first_mask, other=0.0)
            _store(cached_ptrs + here, values, value_factor, first_mask, FLOAT8)
            values = tl.load(value_ptrs + there, mask=second_mask, other=0.0)
            _store(cached_ptrs + there, values, value_factor, second_mask, FLOAT8)
            if REST > 0:
                values = tl.load(value_ptrs + last, mask=rest_mask, other=0.0)
                _store(cached_ptrs + last, values, value_factor, rest_mask, FLOAT8)


@triton.jit
def _rope_kernel(
    query_ptr,
    positions_ptr,
    cos_sin_ptr,
    query_stride,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr,
):
    """Rotates some query heads of a token, as the kernel above does."""
    token = tl.program_id(0).to(tl.int64)
    position = tl.load(positions_ptr + token).to(tl.int64)
    cos, sin = _rotation(cos_sin_ptr, position, HALF, BLOCK_HALF)
    _rotate_queries(
        query_ptr + token * query_stride,
        cos,
        sin,
        1.0,
        query_ptr,
        0.0,
        False,
        False,
        False,
        HEADS,
        HEAD_DIM,
        HALF,
        REST,
        BLOCK_HEADS,
        BLOCK_HALF,
        BLOCK_REST,
    )


@triton.jit
def _rotation(cos_sin_ptr, position, HALF: tl.constexpr, BLOCK_HALF: tl.constexpr):
    """The cosines and sines of a position, [1, BLOCK_HALF] each."""
    columns = tl.arange(0, BLOCK_HALF)
    cos_ptrs = cos_sin_ptr + position * 2 * HALF + columns
    cos = tl.load(cos_ptrs, mask=columns < HALF, other=0.0)
    sin = tl.load(cos_ptrs + HALF, mask=columns < HALF, other=0.0)
    return cos[None, :], sin[None, :]


@triton.jit
def _rotate_queries(
    token_ptr,
    cos,
    sin,
    factor,
    weight_ptr,
    epsilon,
    NORM_BEFORE: tl.constexpr,
    NORM_AFTER: tl.constexpr,
    SCALED: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr,
):
    """Rotate this program's query heads in place; their REST dimensions are left alone if nothing changes them."""
    CHANGES_REST: tl.constexpr = REST > 0 and (NORM_BEFORE or NORM_AFTER or SCALED)
    columns = tl.arange(0, BLOCK_HALF)
    rest_columns = 2 * HALF + tl.arange(0, BLOCK_REST)
    heads = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    mask = (heads < HEADS)[:, None] & (columns < HALF)[None, :]
    rest_mask = (heads < HEADS)[:, None] & (rest_columns < HEAD_DIM)[None, :]
    row_ptrs = token_ptr + heads[:, None] * HEAD_DIM
    # [BLOCK_HEADS, BLOCK_HALF] twice, and [BLOCK_HEADS, BLOCK_REST]
    first, second, rest = _rotate(
        row_ptrs,
        mask,
        rest_mask,
        cos,
        sin,
        factor,
        weight_ptr,
        epsilon,
        NORM_BEFORE,
        NORM_AFTER,
        SCALED,
        CHANGES_REST,
        HEAD_DIM,
        HALF,
        REST,
        BLOCK_HALF,
        BLOCK_REST,
    )
    tl.store(row_ptrs + columns[None, :], first, mask=mask)
    tl.store(row_ptrs + HALF + columns[None, :], second, mask=mask)
    if CHANGES_REST:
        tl.store(row_ptrs + rest_columns[None, :], rest, mask=rest_mask)


@triton.jit
def _rotate(
    row_ptrs,
    mask,
    rest_mask,
    cos,
    sin,
    factor,
    weight_ptr,
    epsilon,
    NORM_BEFORE: tl.constexpr,
    NORM_AFTER: tl.constexpr,
    SCALED: tl.constexpr,
    LOADS_REST: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr,
):
    """Both halves of heads and, with LOADS_REST, their other dimensions; else zeros for these."""
    columns = tl.arange(0, BLOCK_HALF)
    rest_columns = 2 * HALF + tl.arange(0, BLOCK_REST)
    first = tl.load(row_ptrs + columns[None, :], mask=mask, other=0.0)
    second = tl.load(row_ptrs + HALF + columns[None, :], mask=mask, other=0.0)
    rest = tl.zeros([1, BLOCK_REST], dtype=first.dtype)
    if LOADS_REST:
        rest = tl.load(row_ptrs + rest_columns[None, :], mask=rest_mask, other=0.0)
    if NORM_BEFORE:
        first, second, rest = _normalise(
            first, second, rest, weight_ptr, epsilon, HEAD_DIM, HALF, REST, BLOCK_HALF, BLOCK_REST
        )
    wide_first, wide_second, wide_rest = first.to(tl.float32), second.to(tl.float32), rest.to(tl.float32)
    rotated_first = wide_first * cos - wide_second * sin
    rotated_second = wide_second * cos + wide_first * sin
    if SCALED:
        rotated_first *= factor
        rotated_second *= factor
        wide_rest *= factor
    first, second, rest = rotated_first.to(first.dtype), rotated_second.to(first.dtype), wide_rest.to(first.dtype)
    if NORM_AFTER:
        first, second, rest = _normalise(
            first, second, rest, weight_ptr, epsilon, HEAD_DIM, HALF, REST, BLOCK_HALF, BLOCK_REST
        )
    return first, second, rest


@triton.jit
def _normalise(
    first,
    second,
    rest,
    weight_ptr,
    epsilon,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr,
):
    """The norm of each head, rounded like the result of the norm alone."""
    columns = tl.arange(0, BLOCK_HALF)
    rest_columns = 2 * HALF + tl.arange(0, BLOCK_REST)
    wide_first, wide_second, wide_rest = first.to(tl.float32), second.to(tl.float32), rest.to(tl.float32)
    squares = tl.sum(wide_first * wide_first, axis=1) + tl.sum(wide_second * wide_second, axis=1)
    if REST > 0:
        squares += tl.sum(wide_rest * wide_rest, axis=1)
    inverse_rms = tl.rsqrt(squares / HEAD_DIM + epsilon)[:, None]
    first_weight = tl.load(weight_ptr + columns, mask=columns < HALF, other=0.0).to(tl.float32)[None, :]
    second_weight = tl.load(weight_ptr + HALF + columns, mask=columns < HALF, other=0.0).to(tl.float32)[None, :]
    rest_weight = tl.load(weight_ptr + rest_columns, mask=rest_columns < HEAD_DIM, other=0.0).to(tl.float32)
    wide_first = wide_first * inverse_rms * first_weight
    wide_second = wide_second * inverse_rms * second_weight
    wide_rest = wide_rest * inverse_rms * rest_weight[None, :]
    return wide_first.to(first.dtype), wide_second.to(first.dtype), wide_rest.to(first.dtype)


@triton.jit
def _store(pointers, numbers, factor, mask, FLOAT8: tl.constexpr):
    """Store into the cache, in its dtype; fp8 (e4m3) has no infinity, so numbers are clamped to its range."""
    if FLOAT8:
        numbers = tl.clamp(numbers.to(tl.float32) * factor, -448.0, 448.0)
    tl.store(pointers, numbers.to(pointers.dtype.element_ty), mask=mask)
