"""Decode: one query token a row, its cached tokens cut into splits that are attended side by side and then merged.

A split is SPLIT_TOKENS absolute positions, whatever the batch, and the merge adds splits in their order, so a row's
result depends on that row alone. It passes over rows of more than one query token, which prefill serves.
"""
# Triton traces a kernel's text: its arguments have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from pyllm_kernels.attention_tile import attend, tile_positions
from pyllm_kernels.metadata import AttentionMetadata

SPLIT_TOKENS = 256
_MERGED_SPLITS = 16


def decode_attention(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, metadata: AttentionMetadata, scale: float, output: Tensor
) -> None:
    """Write the rows of one query token into `output`; arguments as in `paged_attention`."""
    _, heads, head_dim = query.shape
    _, block_size, kv_heads, _ = key_cache.shape
    num_rows = metadata.slots.shape[0]
    num_splits = triton.cdiv(metadata.max_sequence_length, SPLIT_TOKENS)
    block_d = max(triton.next_power_of_2(head_dim), 16)
    # One split needs no merge: it is written out at once, to the same bits that a merge of one would give.
    split_outputs, log_sums = output, output
    if num_splits > 1:
        shape = (num_rows, heads, num_splits)
        split_outputs = torch.empty((*shape, head_dim), dtype=torch.float32, device=query.device)
        log_sums = torch.empty(shape, dtype=torch.float32, device=query.device)
    _decode_split_kernel[(num_rows, kv_heads, num_splits)](
        query,
        key_cache,
        value_cache,
        metadata.block_tables,
        metadata.slots,
        metadata.query_starts,
        metadata.sequence_lengths,
        output,
        split_outputs,
        log_sums,
        num_splits,
        scale * math.log2(math.e),
        query.stride(0),
        metadata.block_tables.stride(0),
        HEADS=heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
        SPLIT=SPLIT_TOKENS,
        ONE_SPLIT=num_splits == 1,
        BLOCK_M=max(triton.next_power_of_2(heads // kv_heads), 16),  # `tl.dot` takes no fewer than 16 rows.
        BLOCK_N=tile_positions(key_cache),
        BLOCK_D=block_d,
        num_warps=4,
        num_stages=3 if query.element_size() == 2 else 2,
        enable_fp_fusion=True,
    )
    if num_splits > 1:
        _merge_kernel[(num_rows, heads)](
            split_outputs,
            log_sums,
            metadata.query_starts,
            metadata.sequence_lengths,
            output,
            num_splits,
            HEADS=heads,
            HEAD_DIM=head_dim,
            SPLIT=SPLIT_TOKENS,
            BLOCK_SPLITS=_MERGED_SPLITS,
            BLOCK_D=block_d,
            num_warps=4,
            enable_fp_fusion=True,
        )


@triton.jit(do_not_specialize=["num_splits"])
def _decode_split_kernel(
    query_ptr,
    key_cache_ptr,
    value_cache_ptr,
    block_tables_ptr,
    slots_ptr,
    query_starts_ptr,
    sequence_lengths_ptr,
    output_ptr,
    split_outputs_ptr,
    log_sums_ptr,
    num_splits,
    scale_log2,
    query_stride,
    table_stride,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SPLIT: tl.constexpr,
    ONE_SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    token = tl.load(query_starts_ptr + row)
    query_length = tl.load(query_starts_ptr + row + 1) - token
    sequence_length = tl.load(sequence_lengths_ptr + row)
    split_start = split * SPLIT
    if (query_length != 1) | (split_start >= sequence_length):
        return
    GROUP: tl.constexpr = HEADS // KV_HEADS
    members = tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_D)
    mask = (members < GROUP)[:, None] & (columns < HEAD_DIM)[None, :]
    heads = kv_head * GROUP + members
    head_offsets = heads[:, None] * HEAD_DIM + columns[None, :]
    query = tl.load(query_ptr + token.to(tl.int64) * query_stride + head_offsets, mask=mask, other=0.0)

    query_positions = tl.full([BLOCK_M], 0, dtype=tl.int32) + (sequence_length - 1)
    key_ptr = key_cache_ptr + kv_head * HEAD_DIM
    value_ptr = value_cache_ptr + kv_head * HEAD_DIM
    table_ptr = block_tables_ptr + tl.load(slots_ptr + row).to(tl.int64) * table_stride

    split_end = tl.minimum(split_start + SPLIT, sequence_length)
    whole_tiles_end = split_start + (split_end - split_start) // BLOCK_N * BLOCK_N
    accumulator, running_max, running_sum = attend(
        query,
        query_positions,
        split_start,
        whole_tiles_end,
        split_end,
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
    output = accumulator / running_sum[:, None]
    if ONE_SPLIT:
        output_ptrs = output_ptr + token.to(tl.int64) * HEADS * HEAD_DIM + head_offsets
        tl.store(output_ptrs, output.to(output_ptr.dtype.element_ty), mask=mask)
    else:
        splits = (row.to(tl.int64) * HEADS + heads) * num_splits + split  # [BLOCK_M], as the scratch is laid out
        tl.store(split_outputs_ptr + splits[:, None] * HEAD_DIM + columns[None, :], output, mask=mask)
        tl.store(log_sums_ptr + splits, running_max + tl.log2(running_sum), mask=members < GROUP)


@triton.jit(do_not_specialize=["num_splits"])
def _merge_kernel(
    split_outputs_ptr,
    log_sums_ptr,
    query_starts_ptr,
    sequence_lengths_ptr,
    output_ptr,
    num_splits,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    row = tl.program_id(0)
    head = tl.program_id(1)
    token = tl.load(query_starts_ptr + row)
    if tl.load(query_starts_ptr + row + 1) - token != 1:
        return
    used_splits = tl.cdiv(tl.load(sequence_lengths_ptr + row), SPLIT)
    first_split = (row.to(tl.int64) * HEADS + head) * num_splits
    columns = tl.arange(0, BLOCK_D)
    accumulator = tl.zeros([BLOCK_D], dtype=tl.float32)
    running_max = float("-inf")
    running_sum = 0.0
    for start in range(0, used_splits, BLOCK_SPLITS):
        splits = start + tl.arange(0, BLOCK_SPLITS)
        used = splits < used_splits
        log_sums = tl.load(log_sums_ptr + first_split + splits, mask=used, other=float("-inf"))
        outputs = tl.load(
            split_outputs_ptr + (first_split + splits)[:, None] * HEAD_DIM + columns[None, :],
            mask=used[:, None] & (columns < HEAD_DIM)[None, :],
            other=0.0,
        )  # [BLOCK_SPLITS, BLOCK_D]
        new_max = tl.maximum(running_max, tl.max(log_sums, axis=0))
        rescale = tl.exp2(running_max - new_max)
        weights = tl.exp2(log_sums - new_max)
        running_sum = running_sum * rescale + tl.sum(weights, axis=0)
        accumulator = accumulator * rescale + tl.sum(weights[:, None] * outputs, axis=0)
        running_max = new_max
    output_ptrs = output_ptr + (token.to(tl.int64) * HEADS + head) * HEAD_DIM + columns
    tl.store(output_ptrs, (accumulator / running_sum).to(output_ptr.dtype.element_ty), mask=columns < HEAD_DIM)
