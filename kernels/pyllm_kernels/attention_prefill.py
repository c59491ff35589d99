"""Chunked prefill: rows of any length over the paged cache, a KV head's query group packed into the query block.

A program takes BLOCK_M (token, head) pairs of one row and one KV head and visits key tiles from position 0 on, so that
a token's result does not depend on where its chunk began. It passes over rows of one token, which decode serves.
"""
# Triton traces a kernel's text: its arguments have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import math

import triton
import triton.language as tl
from torch import Tensor

from pyllm_kernels.attention_tile import attend, tile_positions
from pyllm_kernels.metadata import AttentionMetadata


def prefill_attention(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, metadata: AttentionMetadata, scale: float, output: Tensor
) -> None:
    """Write the rows of more than one query token into `output`; arguments as in `paged_attention`."""
    _, heads, head_dim = query.shape
    _, block_size, kv_heads, _ = key_cache.shape
    group = heads // kv_heads
    # Float32 has twice the bytes and no tensor cores.
    narrow = query.element_size() == 2
    block_m = max((128 if head_dim <= 128 else 64) if narrow else 32, triton.next_power_of_2(group))
    block_q = block_m // group
    num_rows = metadata.slots.shape[0]
    # Row i's query blocks begin at `query_starts[i] // block_q + i`: a bound that leaves each row room
    # for its last, partial block, known without asking the device.
    grid = (metadata.num_tokens // block_q + num_rows, kv_heads)
    _prefill_kernel[grid](
        query,
        key_cache,
        value_cache,
        metadata.block_tables,
        metadata.slots,
        metadata.query_starts,
        metadata.sequence_lengths,
        output,
        num_rows,
        scale * math.log2(math.e),
        query.stride(0),
        metadata.block_tables.stride(0),
        HEADS=heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
        BLOCK_Q=block_q,
        BLOCK_M=block_m,
        BLOCK_N=tile_positions(key_cache),
        BLOCK_D=max(triton.next_power_of_2(head_dim), 16),
        num_warps=8 if block_m >= 128 else 4,
        num_stages=3 if narrow else 2,
        enable_fp_fusion=True,
    )


@triton.jit(do_not_specialize=["num_rows"])
def _prefill_kernel(
    query_ptr,
    key_cache_ptr,
    value_cache_ptr,
    block_tables_ptr,
    slots_ptr,
    query_starts_ptr,
    sequence_lengths_ptr,
    output_ptr,
    num_rows,
    scale_log2,
    query_stride,
    table_stride,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    # The last blocks of a row see the most keys: they start first, and the short ones fill the end.
    query_block = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    row = _row_of_block(query_starts_ptr, query_block, num_rows, BLOCK_Q)
    query_start = tl.load(query_starts_ptr + row)
    query_length = tl.load(query_starts_ptr + row + 1) - query_start
    first_query = (query_block - query_start // BLOCK_Q - row) * BLOCK_Q
    if (first_query >= query_length) | (query_length == 1):
        return
    GROUP: tl.constexpr = HEADS // KV_HEADS
    pairs = tl.arange(0, BLOCK_M)
    queries = first_query + pairs // GROUP
    columns = tl.arange(0, BLOCK_D)
    # A block holds BLOCK_Q whole tokens; pairs past them, or past the row's end, are computed and dropped.
    valid = (pairs < BLOCK_Q * GROUP) & (queries < query_length)
    mask = valid[:, None] & (columns < HEAD_DIM)[None, :]
    tokens = (query_start + queries).to(tl.int64)
    head_offsets = (kv_head * GROUP + pairs % GROUP)[:, None] * HEAD_DIM + columns[None, :]
    query = tl.load(query_ptr + tokens[:, None] * query_stride + head_offsets, mask=mask, other=0.0)

    sequence_length = tl.load(sequence_lengths_ptr + row)
    context_length = sequence_length - query_length
    query_positions = context_length + queries
    key_ptr = key_cache_ptr + kv_head * HEAD_DIM
    value_ptr = value_cache_ptr + kv_head * HEAD_DIM
    table_ptr = block_tables_ptr + tl.load(slots_ptr + row).to(tl.int64) * table_stride

    # Tiles that end at or before the first query's position need no mask.
    seen_by_all = (context_length + first_query + 1) // BLOCK_N * BLOCK_N
    seen_by_some = tl.minimum(context_length + first_query + BLOCK_Q, sequence_length)
    accumulator, _, running_sum = attend(
        query,
        query_positions,
        0,
        seen_by_all,
        seen_by_some,
        sequence_length,
        key_ptr,
        value_ptr,
        table_ptr,
        scale_log2,
        BLOCK_SIZE,
        KV_HEADS * HEAD_DIM,
        HEAD_DIM,
        BLOCK_M,
        BLOCK_N,
        BLOCK_D,
    )
    output = (accumulator / running_sum[:, None]).to(output_ptr.dtype.element_ty)
    tl.store(output_ptr + tokens[:, None] * HEADS * HEAD_DIM + head_offsets, output, mask=mask)


@triton.jit
def _row_of_block(query_starts_ptr, query_block, num_rows, BLOCK_Q: tl.constexpr):
    """The last row whose blocks begin at or before `query_block`, by bisection."""
    low = num_rows * 0
    high = num_rows
    while high - low > 1:
        middle = (low + high) // 2
        begins = tl.load(query_starts_ptr + middle) // BLOCK_Q + middle
        low = tl.where(begins <= query_block, middle, low)
        high = tl.where(begins <= query_block, high, middle)
    return low
