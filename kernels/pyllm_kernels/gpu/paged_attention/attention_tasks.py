"""The task map: tiles of prefill and shares of decode, listed on the device so that programs need not search for work.

The number of programs follows from the shapes of the batch alone, so that a CUDA graph can hold them; the host never
learns how many of them had work. Does not know the computation of a tile.
"""
# Triton traces a kernel's text: its arguments have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from pyllm_kernels.cards import Card
from pyllm_kernels.decode_shares import ROW_TILES, count_shares
from pyllm_kernels.gpu.paged_attention.attention_tuning import DecodeTile, PrefillTile
from pyllm_kernels.integers import ceil_div
from pyllm_kernels.metadata import AttentionMetadata, AttentionShape, AttentionTasks

_TILES_AT_ONCE = 128
_ROWS_AT_ONCE = 256


def make_tasks(
    metadata: AttentionMetadata,
    shape: AttentionShape,
    prefill: PrefillTile,
    decode: DecodeTile,
    card: Card,
    into: AttentionTasks | None = None,
) -> AttentionTasks:
    """The tasks of one step, for every layer of that shape; `into`: tasks of an equally large batch to overwrite."""
    has_tiles = metadata.max_query_length > 1 or metadata.batch_invariant
    # The host only knows the longest of several rows; a single row has one kind.
    has_splits = not metadata.batch_invariant and (metadata.max_query_length == 1 or metadata.slots.shape[0] > 1)
    block_q = queries_of_tile(shape.heads // shape.kv_heads, prefill)
    tasks = into or _empty_tasks(metadata, block_q, _num_shares(shape, decode, card), has_tiles, has_splits)
    if into is None and shape.window is not None:
        tasks = replace(tasks, window=shape.window)
    if tasks.tiles is not None:
        _fill_tiles(tasks.tiles, metadata, block_q)
    if tasks.shares is not None:
        _fill_shares(tasks, metadata, decode)
    return tasks


def heads_at_once(group: int, block_m: int) -> int:
    """The heads in a tile of `block_m` rows, of a group that shares a KV head: all, or equal parts of them."""
    return ceil_div(group, ceil_div(group, block_m))


def queries_of_tile(group: int, tile: PrefillTile) -> int:
    """The number of whole query tokens in a tile, each with the heads of a group that are in one."""
    return tile.block_m // heads_at_once(group, tile.block_m)


def _num_shares(shape: AttentionShape, decode: DecodeTile, card: Card) -> int:
    parts = ceil_div(shape.heads // shape.kv_heads, decode.block_m)
    return count_shares(card.num_multiprocessors * decode.programs_per_multiprocessor, shape.kv_heads * parts)


def _empty_tasks(
    metadata: AttentionMetadata, block_q: int, num_shares: int, has_tiles: bool, has_splits: bool
) -> AttentionTasks:
    num_rows, device = metadata.slots.shape[0], metadata.slots.device
    # Row i's tiles begin at `query_starts[i] // block_q + i`: a bound that leaves each row room for its last,
    # partial tile, so that a tile's row is found without a sum over the rows before it.
    max_tiles = metadata.num_tokens // block_q + num_rows

    def ints(*size: int) -> Tensor:
        return torch.empty(size, dtype=torch.int32, device=device)

    return AttentionTasks(
        ints(max_tiles, 2) if has_tiles else None,
        *((ints(num_shares, 2), ints(num_rows), ints(1)) if has_splits else (None, None, None)),
    )


def _fill_tiles(tiles: Tensor, metadata: AttentionMetadata, block_q: int) -> None:
    max_tiles = tiles.shape[0]
    _tiles_kernel[(ceil_div(max_tiles, _TILES_AT_ONCE),)](
        metadata.query_starts,
        tiles,
        metadata.slots.shape[0],
        max_tiles,
        BLOCK_Q=block_q,
        ALL_ROWS=metadata.batch_invariant,
        BLOCK=_TILES_AT_ONCE,
        num_warps=4,
        enable_fp_fusion=True,
    )


def _fill_shares(tasks: AttentionTasks, metadata: AttentionMetadata, tile: DecodeTile) -> None:
    assert tasks.shares is not None
    _shares_kernel[(1,)](
        metadata.query_starts,
        metadata.sequence_lengths,
        tasks.shares,
        tasks.row_begins,
        tasks.share_tiles,
        metadata.slots.shape[0],
        tasks.shares.shape[0],
        MIN_TILES=tile.min_split // tile.block_n,
        ROW_COST=ROW_TILES,
        WINDOW=tasks.window,
        BLOCK_N=tile.block_n,
        BLOCK=_ROWS_AT_ONCE,
        num_warps=4,
        enable_fp_fusion=True,
    )


@triton.jit(do_not_specialize=["num_rows", "max_tiles"])
def _tiles_kernel(
    query_starts_ptr,
    tiles_ptr,
    num_rows,
    max_tiles,
    BLOCK_Q: tl.constexpr,
    ALL_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    tiles = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    # Each tile's row is the last whose tiles begin at or before it: by bisection.
    low = tl.zeros([BLOCK], dtype=tl.int32)
    high = low + num_rows
    remaining = num_rows
    while remaining > 1:
        middle = (low + high) // 2
        begins = tl.load(query_starts_ptr + middle) // BLOCK_Q + middle
        low = tl.where(begins <= tiles, middle, low)
        high = tl.where(begins <= tiles, high, middle)
        remaining = (remaining + 1) // 2
    query_start = tl.load(query_starts_ptr + low)
    query_length = tl.load(query_starts_ptr + low + 1) - query_start
    first_query = (tiles - query_start // BLOCK_Q - low) * BLOCK_Q
    used = first_query < query_length
    if not ALL_ROWS:
        used = used & (query_length > 1)
    # The last tiles of a row attend to the most keys: they start first, and the short ones fill the end.
    places = tiles_ptr + 2 * (max_tiles - 1 - tiles)
    mask = tiles < max_tiles
    tl.store(places, tl.where(used, low, -1), mask=mask)
    tl.store(places + 1, first_query, mask=mask)


@triton.jit(do_not_specialize=["num_rows", "num_shares"])
def _shares_kernel(
    query_starts_ptr,
    sequence_lengths_ptr,
    shares_ptr,
    row_begins_ptr,
    share_tiles_ptr,
    num_rows,
    num_shares,
    MIN_TILES: tl.constexpr,
    ROW_COST: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Computes `decode_shares.cut_rows`, as the first and last row of each share."""
    lanes = tl.arange(0, BLOCK)
    lengths, longest = tl.zeros([BLOCK], dtype=tl.int32), tl.zeros([BLOCK], dtype=tl.int32)
    for first in range(0, num_rows, BLOCK):
        tiles = _decoded_tiles(query_starts_ptr, sequence_lengths_ptr, first + lanes, num_rows, WINDOW, BLOCK_N)
        lengths += tl.where(tiles > 0, tiles + ROW_COST, 0)
        longest = tl.maximum(longest, tiles)
    length = tl.sum(lengths, axis=0) - ROW_COST  # of the line; negative if no row decodes
    share_tiles = tl.maximum(tl.cdiv(length, num_shares), tl.minimum(MIN_TILES, tl.max(longest, axis=0)))
    # Longer than the gap between two rows, so that no share before the line's end lies in a gap.
    share_tiles = tl.maximum(share_tiles, ROW_COST + 1)
    tl.store(share_tiles_ptr, share_tiles)
    begin = tl.sum(lanes * 0, axis=0)
    for first in range(0, num_rows, BLOCK):
        rows = first + lanes
        tiles = _decoded_tiles(query_starts_ptr, sequence_lengths_ptr, rows, num_rows, WINDOW, BLOCK_N)
        costs = tl.where(tiles > 0, tiles + ROW_COST, 0)
        begins = begin + tl.cumsum(costs, axis=0) - costs
        ends = begins + tiles
        tl.store(row_begins_ptr + rows, begins, mask=rows < num_rows)
        first_share, last_share = begins // share_tiles, (ends - 1) // share_tiles
        num_splits = tl.where(tiles > 0, last_share - first_share + 1, 0)
        # Whether the previous row ends in an earlier share, and the next row begins in a later one.
        is_first = (begins == 0) | (tl.maximum(begins - ROW_COST - 1, 0) // share_tiles < first_share)
        is_last = (ends == length) | ((ends + ROW_COST) // share_tiles > last_share)
        for split in range(tl.max(num_splits, axis=0)):
            places = shares_ptr + 2 * (first_share + split)
            tl.store(places, rows, mask=(split < num_splits) & ((split > 0) | is_first))
            tl.store(places + 1, rows, mask=(split < num_splits) & ((split < num_splits - 1) | is_last))
        begin += tl.sum(costs, axis=0)
    for first in range(tl.cdiv(tl.maximum(length, 0), share_tiles), num_shares, BLOCK):
        mask = first + lanes < num_shares
        tl.store(shares_ptr + 2 * (first + lanes), lanes * 0, mask=mask)
        tl.store(shares_ptr + 2 * (first + lanes) + 1, lanes * 0 - 1, mask=mask)


@triton.jit
def _decoded_tiles(query_starts_ptr, sequence_lengths_ptr, rows, num_rows, WINDOW: tl.constexpr, BLOCK_N: tl.constexpr):
    """The tiles of each row with one query token, at least one, so that a program writes the row; 0 for others."""
    mask = rows < num_rows
    starts = tl.load(query_starts_ptr + rows, mask=mask, other=0)
    ends = tl.load(query_starts_ptr + rows + 1, mask=mask, other=0)
    lengths = tl.load(sequence_lengths_ptr + rows, mask=mask, other=0)
    tiles = tl.cdiv(lengths, BLOCK_N)
    if WINDOW > 0:
        tiles -= tl.maximum(lengths - WINDOW, 0) // BLOCK_N
    return tl.where(ends - starts == 1, tl.maximum(tiles, 1), 0)
