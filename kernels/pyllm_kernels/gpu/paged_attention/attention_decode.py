"""Decode: one query token a row. Each program attends to an equal share of all the cached tokens.

A row in several shares is merged from its splits. The cuts depend on the whole batch and on the card, so that there is
work for every multiprocessor; so a row's last bits depend on them, too. Rows of more than one query token are left to
the prefill kernel.
"""
# Triton traces a kernel's text: its arguments have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from pyllm_kernels.gpu.paged_attention.attention_tasks import heads_at_once
from pyllm_kernels.gpu.paged_attention.attention_tile import (
    LOG2_E,
    AttendedHeads,
    add_sinks,
    attend,
    attended_heads,
    load_query,
    score_factors,
)
from pyllm_kernels.gpu.paged_attention.attention_tuning import DecodeTile
from pyllm_kernels.integers import ceil_div, next_power_of_2
from pyllm_kernels.launcher import Launcher
from pyllm_kernels.metadata import AttentionLayer, AttentionMetadata

# Limits of what one merge program has in registers at once: splits times columns, and splits.
_MERGED_NUMBERS = 4096
_MERGED_SPLITS = 256


def decode_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    metadata: AttentionMetadata,
    layer: AttentionLayer,
    tile: DecodeTile,
    output: Tensor,
) -> None:
    """Write the rows of one query token into `output`; arguments as in `paged_attention`."""
    tasks = metadata.tasks
    assert tasks is not None
    assert tasks.shares is not None
    assert tasks.window == 0 or (layer.window is not None and layer.window <= tasks.window), "planned for a window"
    heads = attended_heads(query.shape[1:], key_cache.shape, key_cache.stride(), layer.value_start)
    num_shares = tasks.shares.shape[0]
    window, sinks, slopes, has_sinks = layer.window or 0, layer.sinks, layer.slopes, layer.sinks is not None
    # A share has at most two splits that need a merge: of a row that continues from the previous share, and of one that
    # continues in the next share.
    size = heads.head_dim - heads.value_start
    split_outputs = torch.empty((2 * num_shares, heads.heads, size), dtype=torch.float32, device=query.device)
    log_sums = torch.empty((2 * num_shares, heads.heads), dtype=torch.float32, device=query.device)
    # The arguments that both kernels share.
    of_splits = split_outputs, log_sums
    of_rows = metadata.query_starts, metadata.sequence_lengths
    of_shares = tasks.shares, tasks.row_begins, tasks.share_tiles, output if sinks is None else sinks, output
    kind = window, tasks.window, layer.soft_cap is not None, has_sinks, slopes is not None
    launch, programs = _split_launcher(heads, *kind, tile)
    tables = metadata.block_tables
    of_heads = (output if slopes is None else slopes,)
    tensors = query, key_cache, value_cache, tables, metadata.slots, *of_rows, *of_shares, *of_splits, *of_heads
    numbers = *score_factors(layer.scale, layer.soft_cap), query.stride(0), tables.stride(0)
    # The heads of one share run side by side, so that the blocks they share are read from DRAM together.
    launch((programs, num_shares, 1), tensors, numbers)
    # A row in one share needs no merge, and a row of one tile is never cut.
    if metadata.max_sequence_length > tile.block_n:
        launch, columns = _merge_launcher(heads, num_shares, window > 0, tasks.window, has_sinks, tile.block_n)
        launch((heads.heads, num_shares, columns), (*of_splits, *of_rows, *of_shares))


@functools.cache
def _split_launcher(
    heads: AttendedHeads,
    window: int,
    planned_window: int,
    capped: bool,
    has_sinks: bool,
    has_slopes: bool,
    tile: DecodeTile,
) -> tuple[Launcher, int]:
    """The launcher, and its number of programs for a share."""
    group = heads.heads // heads.kv_heads
    members = heads_at_once(group, tile.block_m)
    constants = heads.constants() | {
        "WINDOW": window,
        "PLANNED_WINDOW": planned_window,
        "CAPPED": capped,
        "HAS_SINKS": has_sinks,
        "HAS_SLOPES": has_slopes,
        "MEMBERS": members,
        # Tensor cores take no fewer than 16 rows.
        "BLOCK_M": max(next_power_of_2(members), min(tile.block_m, 16)),
        "BLOCK_N": tile.block_n,
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages,
        "enable_fp_fusion": True,
    }
    return Launcher(_decode_split_kernel, constants), heads.kv_heads * ceil_div(group, members)


@functools.cache
def _merge_launcher(
    heads: AttendedHeads, num_shares: int, windowed: bool, planned_window: int, has_sinks: bool, block_n: int
) -> tuple[Launcher, int]:
    """The launcher of the merge, and its number of programs for the columns of a head."""
    value_dim = heads.head_dim - heads.value_start
    block_splits, block_columns = merged_at_once(num_shares, value_dim)
    constants = {
        "WINDOWED": windowed,
        "PLANNED_WINDOW": planned_window,
        "HAS_SINKS": has_sinks,
        "HEADS": heads.heads,
        "HEAD_DIM": heads.head_dim,
        "VALUE_START": heads.value_start,
        "BLOCK_N": block_n,
        "BLOCK_SPLITS": block_splits,
        "BLOCK_COLUMNS": block_columns,
        "num_warps": 4,
        "enable_fp_fusion": True,
    }
    return Launcher(_merge_kernel, constants), ceil_div(value_dim, block_columns)


def merged_at_once(num_shares: int, head_dim: int) -> tuple[int, int]:
    """The numbers of splits and columns in one pass of a merge program; loads of a second pass wait for the first.

    The splits are all shares that a row can lie in, up to 256.
    """
    splits = min(next_power_of_2(num_shares), _MERGED_SPLITS)
    return splits, min(max(next_power_of_2(head_dim), 16), max(_MERGED_NUMBERS // splits, 16))


@triton.jit
def _decode_split_kernel(
    query_ptr,
    key_cache_ptr,
    value_cache_ptr,
    block_tables_ptr,
    slots_ptr,
    query_starts_ptr,
    sequence_lengths_ptr,
    shares_ptr,
    row_begins_ptr,
    share_tiles_ptr,
    sinks_ptr,
    output_ptr,
    split_outputs_ptr,
    log_sums_ptr,
    slopes_ptr,
    scale_log2,
    cap_scale,
    query_stride,
    table_stride,
    WINDOW: tl.constexpr,
    PLANNED_WINDOW: tl.constexpr,
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
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_START: tl.constexpr,
):
    """Computes the splits of one share, for MEMBERS heads of a KV head's query group, or those that are left."""
    GROUP: tl.constexpr = HEADS // KV_HEADS
    PARTS: tl.constexpr = (GROUP + MEMBERS - 1) // MEMBERS
    VALUE_DIM: tl.constexpr = HEAD_DIM - VALUE_START
    kv_head = tl.program_id(0) // PARTS
    share = tl.program_id(1)
    share_tiles = tl.load(share_tiles_ptr)
    first_row = tl.load(shares_ptr + 2 * share)
    last_row = tl.load(shares_ptr + 2 * share + 1)

    lanes = tl.arange(0, BLOCK_M)
    members = tl.program_id(0) % PARTS * MEMBERS + lanes
    is_member = (lanes < MEMBERS) & (members < GROUP)
    heads = kv_head * GROUP + members
    # Loop invariants are computed for each row: in registers, they would reduce the programs that run at once.
    for row in tl.range(first_row, last_row + 1, disable_licm=True):
        token = tl.load(query_starts_ptr + row).to(tl.int64)
        query_length = tl.load(query_starts_ptr + row + 1) - token
        sequence_length = tl.load(sequence_lengths_ptr + row)
        # The beginning and the end of the share, in tiles of the row.
        first_tile = share * share_tiles - tl.load(row_begins_ptr + row)
        begins_before = first_tile > 0
        first_tile += _passed_tiles(sequence_length, PLANNED_WINDOW, BLOCK_N)
        end_tile = first_tile + share_tiles
        goes_on = end_tile * BLOCK_N < sequence_length
        if query_length == 1:
            table_ptr = block_tables_ptr + tl.load(slots_ptr + row).to(tl.int64) * table_stride
            query_ptrs = query_ptr + token * query_stride + heads * HEAD_DIM
            query, first_query = load_query(query_ptrs, is_member, VALUE_START, VALUE_DIM, BLOCK_D, BLOCK_START)
            split_start = tl.maximum(first_tile, _passed_tiles(sequence_length, PLANNED_WINDOW, BLOCK_N)) * BLOCK_N
            split_end = tl.minimum(end_tile * BLOCK_N, sequence_length)
            start = split_start
            whole_tiles_end = split_start + (split_end - split_start) // BLOCK_N * BLOCK_N
            if WINDOW > 0:
                start = tl.maximum(split_start, tl.maximum(sequence_length - WINDOW, 0) // BLOCK_N * BLOCK_N)
                whole_tiles_end = start
            slopes = 0.0
            if HAS_SLOPES:
                slopes = tl.load(slopes_ptr + heads, mask=is_member, other=0.0) * (LOG2_E / scale_log2)
            accumulator, running_max, running_sum = attend(
                query,
                first_query,
                tl.zeros([BLOCK_M], dtype=tl.int32) + (sequence_length - 1),
                slopes,
                start,
                whole_tiles_end,
                split_end,
                sequence_length,
                key_cache_ptr + kv_head * HEAD_DIM + VALUE_START,
                value_cache_ptr + kv_head * HEAD_DIM + VALUE_START,
                table_ptr,
                scale_log2,
                cap_scale,
                WINDOW,
                False,
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
            is_split = begins_before | goes_on
            if HAS_SINKS:  # A row of several splits gets its sinks when they are merged.
                sinks = tl.load(sinks_ptr + heads, mask=is_member, other=0.0) * LOG2_E
                sinks = tl.where(is_split, float("-inf"), sinks)
                accumulator, running_max, running_sum = add_sinks(accumulator, running_max, running_sum, sinks)
            place = 2 * share + tl.where(begins_before, 0, 1)
            _store_split(
                accumulator,
                running_max,
                running_sum,
                heads,
                is_member,
                is_split,
                split_outputs_ptr + (place * HEADS).to(tl.int64) * VALUE_DIM,
                log_sums_ptr + place * HEADS,
                output_ptr + token * HEADS * HEAD_DIM + VALUE_START,
                HEAD_DIM,
                VALUE_DIM,
                BLOCK_D,
            )


@triton.jit
def _store_split(
    accumulator,
    running_max,
    running_sum,
    heads,
    is_member,
    is_split,
    split_output_ptr,
    log_sum_ptr,
    output_ptr,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Store the results of some heads of a row: into the output, or for the merge if the row is in several shares."""
    columns = tl.arange(0, BLOCK_D)[None, :]
    mask = is_member[:, None] & (columns < VALUE_DIM)
    # Padding rows and splits before the window add nothing: they have no maximum, and sums of 0.
    running_sum = tl.where(running_sum > 0, running_sum, 1.0)
    result = accumulator / running_sum[:, None]
    if is_split:
        tl.store(split_output_ptr + heads[:, None] * VALUE_DIM + columns, result, mask=mask)
        tl.store(log_sum_ptr + heads, running_max + tl.log2(running_sum), mask=is_member)
    else:
        output_ptrs = output_ptr + heads[:, None] * HEAD_DIM + columns
        tl.store(output_ptrs, result.to(output_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _merge_kernel(
    split_outputs_ptr,
    log_sums_ptr,
    query_starts_ptr,
    sequence_lengths_ptr,
    shares_ptr,
    row_begins_ptr,
    share_tiles_ptr,
    sinks_ptr,
    output_ptr,
    WINDOWED: tl.constexpr,
    PLANNED_WINDOW: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VALUE_START: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """Merges the row that begins in this share and continues in the next, if any: some columns of one head."""
    VALUE_DIM: tl.constexpr = HEAD_DIM - VALUE_START
    head = tl.program_id(0)
    share = tl.program_id(1)
    row = tl.load(shares_ptr + 2 * share + 1)
    if row < 0:
        return
    share_tiles = tl.load(share_tiles_ptr)
    begin = tl.load(row_begins_ptr + row)
    sequence_length = tl.load(sequence_lengths_ptr + row)
    tiles = tl.cdiv(sequence_length, BLOCK_N) - _passed_tiles(sequence_length, PLANNED_WINDOW, BLOCK_N)
    num_splits = (begin + tiles - 1) // share_tiles - share + 1
    if (begin < share * share_tiles) | (num_splits <= 1):
        return
    token = tl.load(query_starts_ptr + row)
    columns = tl.program_id(2) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    accumulator = tl.zeros([BLOCK_COLUMNS], dtype=tl.float32)
    running_max = float("-inf")
    running_sum = 0.0
    # One pass, unless a row lies in more shares than fit, so that loads do not wait for others.
    for start in range(0, num_splits, BLOCK_SPLITS):
        splits = start + tl.arange(0, BLOCK_SPLITS)
        used = splits < num_splits
        partials = (2 * (share + splits) + tl.where(splits == 0, 1, 0)) * HEADS + head
        log_sums = tl.load(log_sums_ptr + partials, mask=used, other=float("-inf"))
        outputs = tl.load(
            split_outputs_ptr + partials.to(tl.int64)[:, None] * VALUE_DIM + columns[None, :],
            mask=used[:, None] & (columns < VALUE_DIM)[None, :],
            other=0.0,
        )  # [BLOCK_SPLITS, BLOCK_COLUMNS]
        new_max = tl.maximum(running_max, tl.max(log_sums, axis=0))
        shift = tl.where(new_max == float("-inf"), 0.0, new_max) if WINDOWED else new_max
        rescale = tl.exp2(running_max - shift)
        weights = tl.exp2(log_sums - shift)
        running_sum = running_sum * rescale + tl.sum(weights, axis=0)
        accumulator = accumulator * rescale + tl.sum(weights[:, None] * outputs, axis=0)
        running_max = new_max
    if HAS_SINKS:
        sink = tl.load(sinks_ptr + head) * LOG2_E
        new_max = tl.maximum(running_max, sink)
        shift = tl.where(new_max == float("-inf"), 0.0, new_max)
        rescale = tl.exp2(running_max - shift)
        running_sum = running_sum * rescale + tl.exp2(sink - shift)
        accumulator = accumulator * rescale
    output_ptrs = output_ptr + (token.to(tl.int64) * HEADS + head) * HEAD_DIM + VALUE_START + columns
    tl.store(output_ptrs, (accumulator / running_sum).to(output_ptr.dtype.element_ty), mask=columns < VALUE_DIM)


@triton.jit
def _passed_tiles(sequence_length, WINDOW: tl.constexpr, BLOCK_N: tl.constexpr):
    """The number of tiles before the window, which are in no share."""
    passed = 0
    if WINDOW > 0:
        passed = tl.maximum(sequence_length - WINDOW, 0) // BLOCK_N
    return passed
