"""Chunked prefill: rows of any length over the paged cache, a KV head's query group packed into the query block.

A program takes BLOCK_M (token, head) pairs of one row and one KV head and visits key tiles from position 0 on, so that
a token's result does not depend on the start of its chunk. The task map has the row of each program.
"""
# Triton traces a kernel's text: its arguments have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import functools

import triton
import triton.language as tl
from torch import Tensor

from pyllm_kernels.gpu.paged_attention.attention_tasks import heads_at_once, queries_of_tile
from pyllm_kernels.gpu.paged_attention.attention_tile import (
    LOG2_E,
    AttendedHeads,
    add_sinks,
    attend,
    attended_heads,
    load_query,
    score_factors,
)
from pyllm_kernels.gpu.paged_attention.attention_tuning import PrefillTile
from pyllm_kernels.integers import ceil_div
from pyllm_kernels.launcher import Launcher
from pyllm_kernels.metadata import AttentionLayer, AttentionMetadata


def prefill_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    metadata: AttentionMetadata,
    layer: AttentionLayer,
    tile: PrefillTile,
    output: Tensor,
) -> None:
    """Write the rows that the task map's tiles name into `output`; arguments as in `paged_attention`."""
    assert metadata.tasks is not None
    assert metadata.tasks.tiles is not None
    heads = attended_heads(query.shape[1:], key_cache.shape, key_cache.stride(), layer.value_start)
    tiles, sinks, slopes = metadata.tasks.tiles, layer.sinks, layer.slopes
    kind = layer.soft_cap is not None, sinks is not None, slopes is not None
    launch, programs = _launcher(heads, layer.window or 0, layer.bidirectional, *kind, tile)
    tensors = (
        query,
        key_cache,
        value_cache,
        metadata.block_tables,
        metadata.slots,
        metadata.query_starts,
        metadata.sequence_lengths,
        tiles,
        output if sinks is None else sinks,
        output if slopes is None else slopes,
        output,
    )
    numbers = *score_factors(layer.scale, layer.soft_cap), query.stride(0), metadata.block_tables.stride(0)
    # The heads of one tile run side by side, so that the blocks they share are read from DRAM together.
    launch((programs, tiles.shape[0], 1), tensors, numbers)


@functools.cache
def _launcher(
    heads: AttendedHeads,
    window: int,
    bidirectional: bool,
    capped: bool,
    has_sinks: bool,
    has_slopes: bool,
    tile: PrefillTile,
) -> tuple[Launcher, int]:
    """The launcher, and its number of programs for a tile."""
    group = heads.heads // heads.kv_heads
    members = heads_at_once(group, tile.block_m)
    constants = heads.constants() | {
        "WINDOW": window,
        "BIDIRECTIONAL": bidirectional,
        "CAPPED": capped,
        "HAS_SINKS": has_sinks,
        "HAS_SLOPES": has_slopes,
        "MEMBERS": members,
        "BLOCK_Q": queries_of_tile(group, tile),
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages,
        "enable_fp_fusion": True,
    }
    return Launcher(_prefill_kernel, constants), heads.kv_heads * ceil_div(group, members)


@triton.jit
def _prefill_kernel(
    query_ptr,
    key_cache_ptr,
    value_cache_ptr,
    block_tables_ptr,
    slots_ptr,
    query_starts_ptr,
    sequence_lengths_ptr,
    tiles_ptr,
    sinks_ptr,
    slopes_ptr,
    output_ptr,
    scale_log2,
    cap_scale,
    query_stride,
    table_stride,
    WINDOW: tl.constexpr,
    BIDIRECTIONAL: tl.constexpr,
    CAPPED: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_SLOPES: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VALUE_START: tl.constexpr,
    MEMBERS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_CELLS: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_START: tl.constexpr,
):
    """A program has MEMBERS heads of a KV head's query group, or those that are left."""
    GROUP: tl.constexpr = HEADS // KV_HEADS
    PARTS: tl.constexpr = (GROUP + MEMBERS - 1) // MEMBERS
    VALUE_DIM: tl.constexpr = HEAD_DIM - VALUE_START
    kv_head = tl.program_id(0) // PARTS
    first_member = tl.program_id(0) % PARTS * MEMBERS
    tile = tl.program_id(1)
    row = tl.load(tiles_ptr + 2 * tile)
    if row < 0:
        return
    first_token = tl.load(tiles_ptr + 2 * tile + 1)
    query_start = tl.load(query_starts_ptr + row)
    query_length = tl.load(query_starts_ptr + row + 1) - query_start
    pairs = tl.arange(0, BLOCK_M)
    queries = first_token + pairs // MEMBERS
    members = first_member + pairs % MEMBERS
    columns = tl.arange(0, BLOCK_D)
    # A block holds BLOCK_Q whole tokens; pairs past them, or past the row's end, are computed and dropped.
    valid = (pairs < BLOCK_Q * MEMBERS) & (queries < query_length) & (members < GROUP)
    tokens = (query_start + queries).to(tl.int64)
    heads = kv_head * GROUP + tl.minimum(members, GROUP - 1)
    query_ptrs = query_ptr + tokens * query_stride + heads * HEAD_DIM
    query, first_query = load_query(query_ptrs, valid, VALUE_START, VALUE_DIM, BLOCK_D, BLOCK_START)

    sequence_length = tl.load(sequence_lengths_ptr + row)
    context_length = sequence_length - query_length
    query_positions = context_length + queries
    key_ptr = key_cache_ptr + kv_head * HEAD_DIM + VALUE_START
    value_ptr = value_cache_ptr + kv_head * HEAD_DIM + VALUE_START
    table_ptr = block_tables_ptr + tl.load(slots_ptr + row).to(tl.int64) * table_stride

    first_position = context_length + first_token
    start = 0
    # Tiles that end at or before the first query's position need no mask.
    seen_by_all = (sequence_length if BIDIRECTIONAL else first_position + 1) // BLOCK_N * BLOCK_N
    seen_by_some = sequence_length
    if WINDOW > 0:
        start = tl.maximum(first_position - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
        seen_by_all = start
        if BIDIRECTIONAL:
            seen_by_some = tl.minimum(first_position + BLOCK_Q - 1 + WINDOW, sequence_length)
    if not BIDIRECTIONAL:
        seen_by_some = tl.minimum(first_position + BLOCK_Q, sequence_length)
    slopes = tl.load(slopes_ptr + heads) * (LOG2_E / scale_log2) if HAS_SLOPES else 0.0
    accumulator, running_max, running_sum = attend(
        query,
        first_query,
        query_positions,
        slopes,
        start,
        seen_by_all,
        seen_by_some,
        sequence_length,
        key_ptr,
        value_ptr,
        table_ptr,
        scale_log2,
        cap_scale,
        WINDOW,
        BIDIRECTIONAL,
        CAPPED,
        HAS_SLOPES,
        BLOCK_SIZE,
        BLOCK_CELLS,
        KV_HEADS * HEAD_DIM,
        VALUE_START,
        VALUE_DIM,
        BLOCK_M,
        BLOCK_N,
        BLOCK_D,
        BLOCK_START,
    )
    if HAS_SINKS:
        sinks = tl.load(sinks_ptr + heads) * LOG2_E
        accumulator, _, running_sum = add_sinks(accumulator, running_max, running_sum, sinks)
    if WINDOW > 0:
        running_sum = tl.where(running_sum > 0, running_sum, 1.0)  # for pairs that are dropped
    output = (accumulator / running_sum[:, None]).to(output_ptr.dtype.element_ty)
    output_ptrs = output_ptr + (tokens * HEADS + heads)[:, None] * HEAD_DIM + VALUE_START + columns[None, :]
    tl.store(output_ptrs, output, mask=valid[:, None] & (columns < VALUE_DIM)[None, :])
