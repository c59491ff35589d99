"""Attention by torch's `scaled_dot_product_attention`, row by row: it reads lengths, so it waits for the GPU.

Does not know the kernels of Triton, which are faster.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from pyllm_kernels.metadata import AttentionLayer, AttentionMetadata


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
    return output[..., : layer.value_size].contiguous()


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
    changes = layer.soft_cap, layer.sinks, layer.slopes, layer.relative_bias
    if any(change is not None for change in changes):
        return _attend_by_scores(query, keys, values, layer)
    if queries == 1 and not is_windowed:
        # A single query attends to every key, so the heads that share a KV head can be passed as queries.
        grouped = query.view(1, kv_heads, heads // kv_heads, head_dim)
        attended = F.scaled_dot_product_attention(grouped, keys[None], values[None], scale=layer.scale)
        return attended.reshape(1, heads, head_dim)
    is_masked = is_windowed or (queries < length and not layer.bidirectional)
    mask = _seen(queries, length, layer, query.device) if is_masked else None
    is_causal = mask is None and not layer.bidirectional
    attended = F.scaled_dot_product_attention(
        query.transpose(0, 1), keys, values, attn_mask=mask, is_causal=is_causal, scale=layer.scale, enable_gqa=True
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
    positions = torch.arange(keys.shape[1], device=query.device)
    distances = positions - positions[-queries:, None]
    if layer.slopes is not None:
        scores = scores - layer.slopes[:, None, None] * distances.abs()
    if layer.relative_bias is not None:
        scores = scores + layer.relative_bias[:, layer.middle_of_bias + distances]
    scores = scores.masked_fill_(~seen, -torch.inf)
    if layer.sinks is not None:
        scores = torch.cat((scores, layer.sinks[:, None, None].expand(heads, queries, 1)), dim=-1)
    weights = scores.softmax(dim=-1)[..., : keys.shape[1]]
    return (weights @ values).transpose(0, 1)


def _seen(queries: int, length: int, layer: AttentionLayer, device: torch.device) -> Tensor:
    """The mask of positions that each of the last tokens attends to; bool [queries, length]."""
    positions = torch.arange(length, device=device)
    own = positions[length - queries :, None]
    seen = (positions <= own) | layer.bidirectional
    return seen if layer.window is None else seen & ((positions - own).abs() < layer.window)
