"""The choice of blocks for sparse attention, by torch: it reads the rows on the host, so it waits for the device."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from pyllm_kernels.metadata import AttentionMetadata
from pyllm_kernels.ops.block_selection import KeySummaries, SparseRows


def score_blocks(query: Tensor, key_cache: Tensor, rows: SparseRows, scale: float, summaries: KeySummaries) -> Tensor:
    metadata = rows.metadata
    starts = metadata.query_starts.tolist()
    size = len(metadata.slots), metadata.block_tables.shape[1]
    shares = torch.zeros(size, dtype=torch.float32, device=query.device)
    for row, first, end in _selecting_rows(key_cache, rows):
        candidates = metadata.block_tables[metadata.slots[row].long(), first:end].long()
        _summarise(key_cache, candidates[summaries.known[candidates] == 0], summaries)
        row_shares = _shares(query[starts[row]].float() * scale, summaries.vectors[candidates].float())
        shares[row, : end - first] = row_shares
    return shares


def select_blocks(shares: Tensor, key_cache: Tensor, rows: SparseRows) -> AttentionMetadata:
    metadata, budget = rows.metadata, rows.budget
    block_size, num_rows = key_cache.shape[1], len(metadata.slots)
    tables = metadata.block_tables[metadata.slots.long()].clone()
    lengths = metadata.sequence_lengths.clone()
    for row, first, end in _selecting_rows(key_cache, rows):
        # The first of equal shares: torch's `topk` promises no order.
        best = shares[row, : end - first].sort(descending=True, stable=True).indices[: budget.top_k].sort().values
        kept = tables[row, first:end][best]
        chosen = torch.cat((tables[row, :first], kept, tables[row, end : end + budget.num_recent_blocks]))
        tables[row, : len(chosen)] = chosen
        lengths[row] -= (end - first - budget.top_k) * block_size
    slots = torch.arange(num_rows, dtype=torch.int32, device=lengths.device)
    return replace(metadata, block_tables=tables, slots=slots, sequence_lengths=lengths, tasks=None)


def _selecting_rows(key_cache: Tensor, rows: SparseRows) -> Iterator[tuple[int, int, int]]:
    """The rows that leave blocks out, with the first and the end of their candidate blocks."""
    budget = rows.budget
    starts, may_choose = rows.metadata.query_starts.tolist(), rows.is_sparse.tolist()
    for row, length in enumerate(rows.metadata.sequence_lengths.tolist()):
        candidates = budget.num_candidates(length, key_cache.shape[1])
        has_choice = candidates > budget.top_k
        if may_choose[row] and starts[row + 1] - starts[row] == 1 and has_choice:
            yield row, budget.num_sink_blocks, budget.num_sink_blocks + candidates


def _summarise(key_cache: Tensor, blocks: Tensor, summaries: KeySummaries) -> None:
    keys = key_cache[blocks].float()  # [blocks, block_size, kv_heads, head_dim]
    if summaries.kind == "mean":
        parts = keys.mean(dim=1, keepdim=True)
    else:
        parts = torch.stack((keys.amax(dim=1), keys.amin(dim=1)), dim=1)
    summaries.vectors[blocks] = parts.transpose(1, 2).to(key_cache.dtype)
    summaries.known[blocks] = 1


def _shares(query: Tensor, summaries: Tensor) -> Tensor:
    """Each block's share of a token's attention, summed over the heads, if all keys of a block have its score.

    query [heads, head_dim], scaled; summaries [blocks, kv_heads, parts, head_dim] -> [blocks].
    """
    blocks, kv_heads, parts, head_dim = summaries.shape
    query = query.view(kv_heads, -1, head_dim)
    by_part = (query,) if parts == 1 else (query.clamp(min=0), query.clamp(max=0))
    scores = torch.zeros((kv_heads, query.shape[1], blocks), device=query.device)
    for index, part in enumerate(by_part):
        scores += part @ summaries[:, :, index].permute(1, 2, 0)
    return scores.softmax(dim=-1).sum(dim=(0, 1))
