"""The torch reference of each op on the paged KV cache: its specification, like `reference.py` for the other ops.

The functions read lengths on the host, so on CUDA they wait for the device; `ops.py` documents the ops.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from pyllm_kernels.block_selection import KeySummaries, SparseRows
from pyllm_kernels.metadata import UNSCALED, AttentionLayer, AttentionMetadata, AttentionShape, KVScales, QKNorm
from pyllm_kernels.reference import rms_norm


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
    if norm is not None:
        query.copy_(rms_norm(query, norm.query_weight, norm.epsilon))
        key.copy_(rms_norm(key, norm.key_weight, norm.epsilon))
    cos, sin = cos_sin.index_select(0, positions).unsqueeze(1).chunk(2, dim=-1)  # [tokens, 1, rotary_size / 2] each
    factors = None if query_scales is None else query_scales.index_select(0, positions)[:, None, None]
    _rotate(query, cos, sin, factors)
    _rotate(key, cos, sin, None)
    written = slot_mapping >= 0
    if not written.all():
        slot_mapping, key, value = slot_mapping[written], key[written], value[written]
    _write(key_cache, slot_mapping, key if scales.key == 1 else key.float() / scales.key)
    _write(value_cache, slot_mapping, value if scales.value == 1 else value.float() / scales.value)


def plan_attention(
    metadata: AttentionMetadata, shape: AttentionShape, planned: AttentionMetadata | None = None
) -> AttentionMetadata:
    del shape, planned
    return metadata


def paged_attention(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, metadata: AttentionMetadata, layer: AttentionLayer
) -> Tensor:
    output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    starts, lengths = metadata.query_starts.tolist(), metadata.sequence_lengths.tolist()
    # Row by row: one row's keys and values stay in the CPU's cache from gather to use, which is faster than
    # gathering the batch at once, and no row can depend on another.
    for row, slot in enumerate(metadata.slots.tolist()):
        tokens = slice(starts[row], starts[row + 1])
        first = 0 if layer.window is None else max(0, lengths[row] - (tokens.stop - tokens.start) + 1 - layer.window)
        keys = _gather(key_cache, metadata.block_tables[slot], first, lengths[row])
        values = _gather(value_cache, metadata.block_tables[slot], first, lengths[row])
        output[tokens] = _attend(query[tokens].float(), keys.float(), values.float(), layer)
    return output


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


def copy_blocks(key_cache: Tensor, value_cache: Tensor, copies: Tensor) -> None:
    for source, destination in copies.tolist():
        key_cache[destination] = key_cache[source]
        value_cache[destination] = value_cache[source]


def swap_blocks(cache: Tensor, host_blocks: Tensor, swaps: Tensor) -> None:
    moves = swaps.tolist()
    for direction, device, host in moves:
        if direction == 0:
            host_blocks[host].copy_(cache[:, :, device], non_blocking=True)
    for direction, device, host in moves:
        if direction == 1:
            cache[:, :, device].copy_(host_blocks[host], non_blocking=True)


def gather_blocks(cache: Tensor, staged: Tensor, blocks: Tensor) -> None:
    staged.view(torch.uint8).copy_(cache.view(torch.uint8).index_select(2, blocks).movedim(2, 0))


def scatter_blocks(cache: Tensor, staged: Tensor, blocks: Tensor) -> None:
    cache.view(torch.uint8).index_copy_(2, blocks.long(), staged.view(torch.uint8).movedim(0, 2))


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


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor, factors: Tensor | None) -> None:
    wide = heads.float()
    size = 2 * cos.shape[-1]
    first, second = wide[..., :size].chunk(2, dim=-1)
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin, wide[..., size:]), dim=-1)
    heads.copy_(rotated if factors is None else rotated * factors)


def _write(cache: Tensor, slot_mapping: Tensor, numbers: Tensor) -> None:
    if cache.dtype is torch.float8_e4m3fn:
        largest = torch.finfo(cache.dtype).max
        numbers = numbers.float().clamp(-largest, largest).to(cache.dtype).view(torch.uint8)
        cache = cache.view(torch.uint8)  # torch indexes bytes on every device, but not always fp8.
    cache.flatten(0, 1).index_copy_(0, slot_mapping.long(), numbers.to(cache.dtype))


def _gather(cache: Tensor, table: Tensor, first: int, length: int) -> Tensor:
    """The cached positions from `first` to before `length`, [positions, kv_heads, head_dim]."""
    first_block, num_blocks = first // cache.shape[1], -(-length // cache.shape[1])
    cells = cache.view(torch.uint8) if cache.dtype is torch.float8_e4m3fn else cache
    gathered = cells.index_select(0, table[first_block:num_blocks]).view(cache.dtype)
    start = first_block * cache.shape[1]
    return gathered.flatten(0, 1)[first - start : length - start]


def _attend(query: Tensor, keys: Tensor, values: Tensor, layer: AttentionLayer) -> Tensor:
    """Attention of the last positions to all: query [queries, heads, head_dim], keys [length, kv_heads, head_dim].

    With a window the keys begin at the first query's window.
    """
    queries, heads, head_dim = query.shape
    length, kv_heads, _ = keys.shape
    keys, values = keys.transpose(0, 1), values.transpose(0, 1)  # [kv_heads, length, head_dim]
    is_windowed = layer.window is not None and layer.window < length
    if layer.soft_cap is not None or layer.sinks is not None:
        return _attend_by_scores(query, keys, values, layer)
    if queries == 1 and not is_windowed:
        # A single query attends to every key, so the heads that share a KV head can be passed as queries.
        grouped = query.view(1, kv_heads, heads // kv_heads, head_dim)
        attended = F.scaled_dot_product_attention(grouped, keys[None], values[None], scale=layer.scale)
        return attended.reshape(1, heads, head_dim)
    mask = _seen(queries, length, layer, query.device) if queries < length or is_windowed else None
    attended = F.scaled_dot_product_attention(
        query.transpose(0, 1), keys, values, attn_mask=mask, is_causal=mask is None, scale=layer.scale, enable_gqa=True
    )
    return attended.transpose(0, 1)


def _attend_by_scores(query: Tensor, keys: Tensor, values: Tensor, layer: AttentionLayer) -> Tensor:
    queries, heads, _ = query.shape
    group = heads // keys.shape[0]
    keys, values = (tensor.repeat_interleave(group, dim=0) for tensor in (keys, values))  # [heads, length, head_dim]
    scores = query.transpose(0, 1) @ keys.transpose(1, 2) * layer.scale  # [heads, queries, length]
    seen = _seen(queries, keys.shape[1], layer, query.device)
    if (cap := layer.soft_cap) is not None:
        scores = cap * torch.tanh(scores / cap)
    scores = scores.masked_fill_(~seen, -torch.inf)
    if layer.sinks is not None:
        scores = torch.cat((scores, layer.sinks[:, None, None].expand(heads, queries, 1)), dim=-1)
    weights = scores.softmax(dim=-1)[..., : keys.shape[1]]
    return (weights @ values).transpose(0, 1)


def _seen(queries: int, length: int, layer: AttentionLayer, device: torch.device) -> Tensor:
    """The mask of positions that each of the last tokens attends to; bool [queries, length]."""
    positions = torch.arange(length, device=device)
    own = positions[length - queries :, None]
    seen = positions <= own
    return seen if layer.window is None else seen & (positions > own - layer.window)
