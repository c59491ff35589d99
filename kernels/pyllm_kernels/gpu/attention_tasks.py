"""The task map: tiles of prefill and splits of decode, listed on the device so that no program has to look for its own.

How many programs start follows from the shapes of the batch alone, so that a CUDA graph can hold them; the host never
learns how many of them found work. It does not know what a tile computes.
"""
# Triton traces a kernel's text: its arguments have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import torch
import triton
import triton.language as tl
from torch import Tensor

from pyllm_kernels.cards import Card
from pyllm_kernels.gpu.attention_tuning import DecodeTile, PrefillTile
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
    """The tasks of one step, for every layer of that shape; `into` those of a batch with as many rows and tokens."""
    has_tiles = metadata.max_query_length > 1 or metadata.batch_invariant
    # Of several rows the host knows the longest only; a lone row is of one kind.
    has_splits = not metadata.batch_invariant and (metadata.max_query_length == 1 or metadata.slots.shape[0] > 1)
    block_q = queries_of_tile(shape, prefill)
    # Splits of 1/target of all positions: each row adds at most one partial split to that.
    target = max(card.num_multiprocessors * decode.programs_per_multiprocessor // shape.kv_heads, 1)
    tasks = into or _empty_tasks(metadata, block_q, target, has_tiles, has_splits)
    if tasks.tiles is not None:
        _fill_tiles(tasks.tiles, metadata, block_q)
    if tasks.splits is not None:
        _fill_splits(tasks, metadata, target, decode)
    return tasks


def queries_of_tile(shape: AttentionShape, tile: PrefillTile) -> int:
    """Whole query tokens in a tile, each with all the heads that share a KV head."""
    group = shape.heads // shape.kv_heads
    return int(max(tile.block_m, triton.next_power_of_2(group)) // group)


def _empty_tasks(
    metadata: AttentionMetadata, block_q: int, target: int, has_tiles: bool, has_splits: bool
) -> AttentionTasks:
    num_rows, device = metadata.slots.shape[0], metadata.slots.device
    # Row i's tiles begin at `query_starts[i] // block_q + i`: a bound that leaves each row room for its last,
    # partial tile, so that a tile's row is found without adding up those before it.
    max_tiles = metadata.num_tokens // block_q + num_rows

    def ints(*size: int) -> Tensor:
        return torch.empty(size, dtype=torch.int32, device=device)

    return AttentionTasks(
        ints(max_tiles, 2) if has_tiles else None,
        *((ints(num_rows + target, 2), ints(num_rows), ints(1)) if has_splits else (None, None, None)),
    )


def _fill_tiles(tiles: Tensor, metadata: AttentionMetadata, block_q: int) -> None:
    max_tiles = tiles.shape[0]
    _tiles_kernel[(triton.cdiv(max_tiles, _TILES_AT_ONCE),)](
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


def _fill_splits(tasks: AttentionTasks, metadata: AttentionMetadata, target: int, tile: DecodeTile) -> None:
    assert tasks.splits is not None
    _splits_kernel[(1,)](
        metadata.query_starts,
        metadata.sequence_lengths,
        tasks.splits,
        tasks.split_starts,
        tasks.split_tokens,
        metadata.slots.shape[0],
        tasks.splits.shape[0],
        target,
        MIN_SPLIT=tile.min_split,
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
    # The last tiles of a row see the most keys: they start first, and the short ones fill the end.
    places = tiles_ptr + 2 * (max_tiles - 1 - tiles)
    mask = tiles < max_tiles
    tl.store(places, tl.where(used, low, -1), mask=mask)
    tl.store(places + 1, first_query, mask=mask)


@triton.jit(do_not_specialize=["num_rows", "max_splits", "target"])
def _splits_kernel(
    query_starts_ptr,
    sequence_lengths_ptr,
    splits_ptr,
    starts_ptr,
    tokens_ptr,
    num_rows,
    max_splits,
    target,
    MIN_SPLIT: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK: tl.constexpr,
):
    lanes = tl.arange(0, BLOCK)
    positions = tl.zeros([BLOCK], dtype=tl.int64)
    for first in range(0, num_rows, BLOCK):
        positions += _decoded_length(query_starts_ptr, sequence_lengths_ptr, first + lanes, num_rows).to(tl.int64)
    split_tokens = tl.cdiv(tl.cdiv(tl.sum(positions, axis=0), target), BLOCK_N) * BLOCK_N
    split_tokens = tl.maximum(split_tokens, MIN_SPLIT).to(tl.int32)
    tl.store(tokens_ptr, split_tokens)
    begin = tl.sum(lanes * 0, axis=0)
    for first in range(0, num_rows, BLOCK):
        rows = first + lanes
        num_splits = tl.cdiv(_decoded_length(query_starts_ptr, sequence_lengths_ptr, rows, num_rows), split_tokens)
        starts = begin + tl.cumsum(num_splits, axis=0) - num_splits
        tl.store(starts_ptr + rows, starts, mask=rows < num_rows)
        for split in range(tl.max(num_splits, axis=0)):
            mask = split < num_splits
            tl.store(splits_ptr + 2 * (starts + split), rows, mask=mask)
            tl.store(splits_ptr + 2 * (starts + split) + 1, split + lanes * 0, mask=mask)
        begin += tl.sum(num_splits, axis=0)
    for first in range(begin, max_splits, BLOCK):
        tl.store(splits_ptr + 2 * (first + lanes), lanes * 0 - 1, mask=first + lanes < max_splits)


@triton.jit
def _decoded_length(query_starts_ptr, sequence_lengths_ptr, rows, num_rows):
    """The sequence lengths of the rows with one query token, 0 of the others."""
    mask = rows < num_rows
    starts = tl.load(query_starts_ptr + rows, mask=mask, other=0)
    ends = tl.load(query_starts_ptr + rows + 1, mask=mask, other=0)
    lengths = tl.load(sequence_lengths_ptr + rows, mask=mask, other=0)
    return tl.where(ends - starts == 1, lengths, 0)
