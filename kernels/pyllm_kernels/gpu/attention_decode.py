"""Decode: one query token a row, its cached tokens cut into splits that are attended side by side and then merged.

How long a split is, the task map says: it depends on the whole batch and on the card, so that there is work for every
multiprocessor, and a row's last bits with it. It passes over rows of more than one query token, which prefill serves.
"""
# Triton traces a kernel's text: its arguments have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from pyllm_kernels.gpu.attention_tile import LOG2_E, add_sinks, attend
from pyllm_kernels.gpu.attention_tuning import DecodeTile
from pyllm_kernels.metadata import AttentionLayer, AttentionMetadata

_MERGED_SPLITS = 16


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
    assert tasks.splits is not None
    _, heads, head_dim = query.shape
    _, block_size, kv_heads, _ = key_cache.shape
    num_rows, max_splits = metadata.slots.shape[0], tasks.splits.shape[0]
    block_d = max(triton.next_power_of_2(head_dim), 16)
    split_outputs = torch.empty((max_splits, heads, head_dim), dtype=torch.float32, device=query.device)
    log_sums = torch.empty((max_splits, heads), dtype=torch.float32, device=query.device)
    # The heads of one split run side by side, so that the blocks they share are read from DRAM together.
    _decode_split_kernel[(kv_heads, max_splits)](
        query,
        key_cache,
        value_cache,
        metadata.block_tables,
        metadata.slots,
        metadata.query_starts,
        metadata.sequence_lengths,
        tasks.splits,
        tasks.split_tokens,
        layer.sinks,
        output,
        split_outputs,
        log_sums,
        (layer.scale if layer.soft_cap is None else layer.soft_cap) * math.log2(math.e),
        0.0 if layer.soft_cap is None else layer.scale / layer.soft_cap,
        query.stride(0),
        metadata.block_tables.stride(0),
        WINDOW=layer.window or 0,
        CAPPED=layer.soft_cap is not None,
        HAS_SINKS=layer.sinks is not None,
        HEADS=heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
        BLOCK_M=max(triton.next_power_of_2(heads // kv_heads), 16),  # `tl.dot` takes no fewer than 16 rows.
        BLOCK_N=tile.block_n,
        BLOCK_D=block_d,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        enable_fp_fusion=True,
    )
    # One split needs no merge: it was written out at once, to the same bits that a merge of one would give.
    if metadata.max_sequence_length > tile.min_split:
        _merge_kernel[(heads, num_rows)](
            split_outputs,
            log_sums,
            metadata.query_starts,
            metadata.sequence_lengths,
            tasks.split_starts,
            tasks.split_tokens,
            layer.sinks,
            output,
            WINDOWED=layer.window is not None,
            HAS_SINKS=layer.sinks is not None,
            HEADS=heads,
            HEAD_DIM=head_dim,
            BLOCK_SPLITS=_MERGED_SPLITS,
            BLOCK_D=block_d,
            num_warps=4,
            enable_fp_fusion=True,
        )


@triton.jit
def _decode_split_kernel(
    query_ptr,
    key_cache_ptr,
    value_cache_ptr,
    block_tables_ptr,
    slots_ptr,
    query_starts_ptr,
    sequence_lengths_ptr,
    splits_ptr,
    split_tokens_ptr,
    sinks_ptr,
    output_ptr,
    split_outputs_ptr,
    log_sums_ptr,
    scale_log2,
    cap_scale,
    query_stride,
    table_stride,
    WINDOW: tl.constexpr,
    CAPPED: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    kv_head = tl.program_id(0)
    task = tl.program_id(1)
    row = tl.load(splits_ptr + 2 * task)
    if row < 0:
        return
    split = tl.load(splits_ptr + 2 * task + 1)
    split_tokens = tl.load(split_tokens_ptr)
    token = tl.load(query_starts_ptr + row).to(tl.int64)
    sequence_length = tl.load(sequence_lengths_ptr + row)
    table_ptr = block_tables_ptr + tl.load(slots_ptr + row).to(tl.int64) * table_stride

    GROUP: tl.constexpr = HEADS // KV_HEADS
    members = tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_D)
    mask = (members < GROUP)[:, None] & (columns < HEAD_DIM)[None, :]
    heads = kv_head * GROUP + members
    head_offsets = heads[:, None] * HEAD_DIM + columns[None, :]
    query = tl.load(query_ptr + token * query_stride + head_offsets, mask=mask, other=0.0)

    # A multiple of BLOCK_N, which the compiler cannot see in a loaded number.
    split_start = split * tl.multiple_of(split_tokens, BLOCK_N)
    split_end = tl.minimum(split_start + split_tokens, sequence_length)
    start = split_start
    whole_tiles_end = split_start + (split_end - split_start) // BLOCK_N * BLOCK_N
    if WINDOW > 0:
        start = tl.maximum(split_start, tl.maximum(sequence_length - WINDOW, 0) // BLOCK_N * BLOCK_N)
        whole_tiles_end = start
    accumulator, running_max, running_sum = attend(
        query,
        tl.zeros([BLOCK_M], dtype=tl.int32) + (sequence_length - 1),
        start,
        whole_tiles_end,
        split_end,
        sequence_length,
        key_cache_ptr + kv_head * HEAD_DIM,
        value_cache_ptr + kv_head * HEAD_DIM,
        table_ptr,
        scale_log2,
        cap_scale,
        WINDOW,
        CAPPED,
        BLOCK_SIZE,
        KV_HEADS * HEAD_DIM,
        HEAD_DIM,
        BLOCK_M,
        BLOCK_N,
        BLOCK_D,
    )
    if HAS_SINKS:  # Where there are several splits, they get their sinks when they are merged.
        sinks = tl.load(sinks_ptr + heads, mask=members < GROUP, other=0.0) * LOG2_E
        sinks = tl.where(sequence_length <= split_tokens, sinks, float("-inf"))
        accumulator, running_max, running_sum = add_sinks(accumulator, running_max, running_sum, sinks)
    if WINDOW > 0:  # A split before the window adds nothing: its maximum is minus infinity.
        running_sum = tl.where(running_sum > 0, running_sum, 1.0)
    log_sum = running_max + tl.log2(running_sum)
    output = accumulator / running_sum[:, None]
    if sequence_length <= split_tokens:
        output_ptrs = output_ptr + token * HEADS * HEAD_DIM + head_offsets
        tl.store(output_ptrs, output.to(output_ptr.dtype.element_ty), mask=mask)
    else:
        split_ptrs = split_outputs_ptr + (task * HEADS).to(tl.int64) * HEAD_DIM + head_offsets
        tl.store(split_ptrs, output, mask=mask)
        tl.store(log_sums_ptr + task * HEADS + heads, log_sum, mask=members < GROUP)


@triton.jit
def _merge_kernel(
    split_outputs_ptr,
    log_sums_ptr,
    query_starts_ptr,
    sequence_lengths_ptr,
    split_starts_ptr,
    split_tokens_ptr,
    sinks_ptr,
    output_ptr,
    WINDOWED: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    head = tl.program_id(0)
    row = tl.program_id(1)
    token = tl.load(query_starts_ptr + row)
    query_length = tl.load(query_starts_ptr + row + 1) - token
    num_splits = tl.cdiv(tl.load(sequence_lengths_ptr + row), tl.load(split_tokens_ptr))
    if (query_length != 1) | (num_splits == 1):
        return
    first_split = tl.load(split_starts_ptr + row)
    columns = tl.arange(0, BLOCK_D)
    accumulator = tl.zeros([BLOCK_D], dtype=tl.float32)
    running_max = float("-inf")
    running_sum = 0.0
    for start in range(0, num_splits, BLOCK_SPLITS):
        splits = start + tl.arange(0, BLOCK_SPLITS)
        used = splits < num_splits
        partials = (first_split + splits) * HEADS + head
        log_sums = tl.load(log_sums_ptr + partials, mask=used, other=float("-inf"))
        outputs = tl.load(
            split_outputs_ptr + partials.to(tl.int64)[:, None] * HEAD_DIM + columns[None, :],
            mask=used[:, None] & (columns < HEAD_DIM)[None, :],
            other=0.0,
        )  # [BLOCK_SPLITS, BLOCK_D]
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
    # A row that pads the batch has no split, and gets zeros.
    output = accumulator / tl.where(num_splits == 0, 1.0, running_sum)
    output_ptrs = output_ptr + (token.to(tl.int64) * HEADS + head) * HEAD_DIM + columns
    tl.store(output_ptrs, output.to(output_ptr.dtype.element_ty), mask=columns < HEAD_DIM)
