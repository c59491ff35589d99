"""Attention of a block of queries to tiles of keys and values: the online softmax of both attention kernels.

Knows neither the packing of queries nor the visited positions. Sums are in an order fixed by position alone.
"""
# Triton traces a kernel's text: its arguments have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import functools
import math
from typing import NamedTuple

import triton
import triton.language as tl

from pyllm_kernels.integers import next_power_of_2
from pyllm_kernels.launcher import Constant

LOG2_E = tl.constexpr(math.log2(math.e))


class AttendedHeads(NamedTuple):
    """The heads of queries and of the cache that they attend to; blocks begin `block_cells` positions apart."""

    heads: int
    kv_heads: int
    head_dim: int
    value_start: int
    block_size: int
    block_cells: int

    def constants(self) -> dict[str, Constant]:
        """The kernels' constants."""
        value_dim = self.head_dim - self.value_start
        return {
            "HEADS": self.heads,
            "KV_HEADS": self.kv_heads,
            "HEAD_DIM": self.head_dim,
            "VALUE_START": self.value_start,
            "BLOCK_SIZE": self.block_size,
            "BLOCK_CELLS": self.block_cells,
            "BLOCK_D": max(next_power_of_2(value_dim), 16),
            "BLOCK_START": max(next_power_of_2(max(self.value_start, 1)), 16),
        }


@functools.cache
def attended_heads(
    query: tuple[int, ...], cache: tuple[int, ...], strides: tuple[int, ...], value_start: int
) -> AttendedHeads:
    """The heads of a query [tokens, *query] over a cache of this shape and these strides.

    `value_start` as in `AttentionLayer`.
    """
    (heads, head_dim), (_, block_size, kv_heads, _) = query, cache
    return AttendedHeads(heads, kv_heads, head_dim, value_start, block_size, strides[0] // strides[1])


@functools.cache
def score_factors(scale: float, soft_cap: float | None) -> tuple[float, float]:
    """`scale_log2` and `cap_scale` of a layer: scores become powers of 2, after the cap if there is one."""
    if soft_cap is None:
        return scale * LOG2_E.value, 0.0
    return soft_cap * LOG2_E.value, scale / soft_cap


@triton.jit
def attend(
    query,  # [BLOCK_M, BLOCK_D]: the numbers that meet those of values
    first_query,  # [BLOCK_M, BLOCK_START]: the VALUE_START numbers before them
    query_positions,  # int32 [BLOCK_M]
    slopes,  # [BLOCK_M], in units of unscaled scores
    start,
    seen_by_all,
    end,
    sequence_length,
    key_ptr,  # number VALUE_START of this KV head in block 0
    value_ptr,
    table_ptr,  # the row's block table
    scale_log2,
    cap_scale,
    WINDOW: tl.constexpr,
    BIDIRECTIONAL: tl.constexpr,
    CAPPED: tl.constexpr,
    HAS_SLOPES: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_CELLS: tl.constexpr,
    TOKEN_STRIDE: tl.constexpr,
    VALUE_START: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_START: tl.constexpr,
):
    """The weighted sums of values, the maxima and the sums of weights over the positions from `start` to `end`.

    Float32 [BLOCK_M, BLOCK_D], [BLOCK_M] and [BLOCK_M]; maxima are in units of log2, for `exp2`. Positions are visited
    in tiles of BLOCK_N from `start`, a multiple of BLOCK_N. Positions before `seen_by_all`, where a tile begins, need
    no mask. The arithmetic of a visible position is the same with a mask and without: scores are masked before they are
    scaled, so that both loops contract to the same multiply-adds. A block begins BLOCK_CELLS positions after the one
    before it. With VALUE_START, a value is the rest of its key, which is loaded once.
    """
    columns = tl.arange(0, BLOCK_D)
    first_columns = tl.arange(0, BLOCK_START)
    # Blocks before the window may have been freed.
    first_seen = tl.min(query_positions, axis=0) - WINDOW + 1 if WINDOW > 0 else 0
    accumulator = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    running_max = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    running_sum = tl.zeros([BLOCK_M], dtype=tl.float32)
    FROM_FLOAT8: tl.constexpr = key_ptr.dtype.element_ty.is_fp8() and query.dtype == tl.bfloat16
    powers = 1.0
    if FROM_FLOAT8:
        powers = _powers(query, first_query, VALUE_START)
        query = (query.to(tl.float32) / powers).to(tl.float16)
        if VALUE_START > 0:
            first_query = (first_query.to(tl.float32) / powers).to(tl.float16)
    for MASKED in tl.static_range(2):
        begin = seen_by_all if MASKED else start
        last = end if MASKED else seen_by_all
        for tile_start in range(begin, last, BLOCK_N):
            positions = tile_start + tl.arange(0, BLOCK_N)
            cells = _cells(table_ptr, tile_start, sequence_length, first_seen, MASKED, BLOCK_SIZE, BLOCK_CELLS, BLOCK_N)
            tokens = cells[:, None] * TOKEN_STRIDE
            offsets = tokens + columns[None, :]
            cached = ((positions < sequence_length) & (positions >= first_seen))[:, None]
            # Convert an fp8 cache; the sums of products are float32.
            key = _load(key_ptr + offsets, cached, columns, MASKED, VALUE_DIM, BLOCK_D).to(query.dtype)
            if VALUE_START > 0:
                value = key
            else:
                value = _load(value_ptr + offsets, cached, columns, MASKED, VALUE_DIM, BLOCK_D).to(query.dtype)

            scores = tl.dot(query, tl.trans(key), input_precision="ieee")  # [BLOCK_M, BLOCK_N]
            if VALUE_START > 0:
                first_ptr = key_ptr - VALUE_START + tokens + first_columns[None, :]
                first = _load(first_ptr, cached, first_columns, MASKED, VALUE_START, BLOCK_START).to(query.dtype)
                scores = tl.dot(first_query, tl.trans(first), scores, input_precision="ieee")
            if FROM_FLOAT8:
                scores = scores * powers
            if CAPPED:
                scores = 2 * tl.sigmoid(tl.maximum(2 * cap_scale * scores, -80.0)) - 1
            if HAS_SLOPES:
                distances = positions[None, :] - query_positions[:, None]
                scores += slopes[:, None] * (-tl.abs(distances) if BIDIRECTIONAL else distances)
            if MASKED:
                ends = sequence_length if BIDIRECTIONAL else query_positions[:, None] + 1
                seen = _seen(positions[None, :], query_positions[:, None], ends, WINDOW)
                scores = tl.where(seen, scores, float("-inf"))
            new_max = tl.maximum(running_max, tl.max(scores, axis=1) * scale_log2)
            # A query without a visible key so far has no maximum: its weights and sums stay 0.
            shift = tl.where(new_max == float("-inf"), 0.0, new_max) if WINDOW > 0 else new_max
            weights = tl.exp2(scores * scale_log2 - shift[:, None])
            rescale = tl.exp2(running_max - shift)
            running_sum = running_sum * rescale + tl.sum(weights, axis=1)
            accumulator = accumulator * rescale[:, None]
            accumulator = tl.dot(weights.to(value.dtype), value, accumulator, input_precision="ieee")
            running_max = new_max
    return accumulator, running_max, running_sum


@triton.jit
def load_query(
    row_ptrs,  # number 0 of each query
    is_row,
    VALUE_START: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_START: tl.constexpr,
):
    """The two parts of queries for `attend`, zeros where there is none."""
    columns, first_columns = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_START)
    mask = is_row[:, None] & (columns < VALUE_DIM)[None, :]
    query = tl.load(row_ptrs[:, None] + VALUE_START + columns[None, :], mask=mask, other=0.0)
    first_query = 0.0
    if VALUE_START > 0:
        first_mask = is_row[:, None] & (first_columns < VALUE_START)[None, :]
        first_query = tl.load(row_ptrs[:, None] + first_columns[None, :], mask=first_mask, other=0.0)
    return query, first_query


@triton.jit
def add_sinks(accumulator, running_max, running_sum, sinks):
    """Add the weights of sinks to the sums of values and of weights, relative to the new maximum.

    Sinks are in units of log2; a sink of minus infinity adds nothing.
    """
    new_max = tl.maximum(running_max, sinks)
    shift = tl.where(new_max == float("-inf"), 0.0, new_max)
    rescale = tl.exp2(running_max - shift)
    return accumulator * rescale[:, None], new_max, running_sum * rescale + tl.exp2(sinks - shift)


@triton.jit
def _cells(
    table_ptr,
    tile_start,
    sequence_length,
    first_seen,
    MASKED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_CELLS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """The cells of a tile's positions in the cache, int64 [BLOCK_N]."""
    within = tl.arange(0, BLOCK_N)
    positions = tile_start + within
    if BLOCK_SIZE % BLOCK_N == 0:
        # The tile lies in one block: its cells are a matrix, and one entry of the table is read.
        block = tl.load(table_ptr + tile_start // BLOCK_SIZE).to(tl.int64)
        cells = block * BLOCK_CELLS + (tile_start % BLOCK_SIZE + within)
    elif MASKED:
        is_there = (positions < sequence_length) & (positions >= first_seen)
        blocks = tl.load(table_ptr + positions // BLOCK_SIZE, mask=is_there, other=0)
        cells = blocks.to(tl.int64) * BLOCK_CELLS + positions % BLOCK_SIZE
    else:
        blocks = tl.load(table_ptr + positions // BLOCK_SIZE)
        cells = blocks.to(tl.int64) * BLOCK_CELLS + positions % BLOCK_SIZE
    return cells


@triton.jit
def _load(pointers, cached, columns, MASKED: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Keys or values of a tile. Memory outside may hold NaNs, so it is read as zero; zero times weight 0 is zero."""
    if MASKED and SIZE == BLOCK:
        numbers = tl.load(pointers, mask=cached, other=0.0)
    elif MASKED:
        numbers = tl.load(pointers, mask=cached & (columns < SIZE)[None, :], other=0.0)
    elif SIZE == BLOCK:
        numbers = tl.load(pointers)
    else:
        numbers = tl.load(pointers, mask=(columns < SIZE)[None, :], other=0.0)
    return numbers


@triton.jit
def _powers(query, first_query, VALUE_START: tl.constexpr):
    """Powers of two, float32 [BLOCK_M, 1], that bfloat16 queries are divided by to become float16.

    Keys and values in fp8 are converted to float16, which holds every fp8 number: one instruction converts a pair,
    while bfloat16 takes three. Queries are scaled so that the largest number is between 1 and 2, and none exceeds
    float16's range; numbers that become too small do not matter in a sum.
    """
    largest = tl.max(tl.abs(query.to(tl.float32)), axis=1, keep_dims=True)
    if VALUE_START > 0:
        largest = tl.maximum(largest, tl.max(tl.abs(first_query.to(tl.float32)), axis=1, keep_dims=True))
    powers = (largest.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
    return tl.where(powers > 0, powers, 1.0)


@triton.jit
def _seen(positions, query_positions, ends, WINDOW: tl.constexpr):
    seen = positions < ends
    if WINDOW > 0:
        seen = seen & (tl.abs(positions - query_positions) < WINDOW)
    return seen
