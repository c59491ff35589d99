"""Attention over the paged KV cache."""

import numpy as np

from pyllm_kernels import _cpu, graph
from pyllm_kernels.metadata import AttentionLayer, AttentionMetadata, AttentionShape
from pyllm_kernels.op import op
from pyllm_kernels.tensors import Array, Floats, Tensor, softmax, widened


def _plan_attention(
    metadata: AttentionMetadata, shape: AttentionShape, planned: AttentionMetadata | None = None
) -> AttentionMetadata:
    del shape, planned
    return metadata


@op(reference=_plan_attention, triton="pyllm_kernels.gpu.paged_attention.attention")
def plan_attention(
    metadata: AttentionMetadata, shape: AttentionShape, planned: AttentionMetadata | None = None
) -> AttentionMetadata:
    """The metadata with the task map of one step, for every layer of that shape.

    `planned` is the result for a batch with as many rows and tokens: its task map is overwritten, so that a graph that
    reads it gets this step's. Without this call `paged_attention` makes its own, which costs one or two kernels a layer
    on a GPU.
    """
    return _plan_attention(metadata, shape, planned)


def _paged_attention(
    query: Array, key_cache: Array, value_cache: Array, metadata: AttentionMetadata, layer: AttentionLayer
) -> Array:
    output = np.empty_like(query, subok=False)
    starts, lengths = metadata.query_starts.tolist(), metadata.sequence_lengths.tolist()
    for row, slot in enumerate(metadata.slots.tolist()):
        tokens, length = slice(starts[row], starts[row + 1]), lengths[row]
        if tokens.start == tokens.stop:
            continue  # Steps of graphs are padded.
        first = 0 if layer.window is None else max(0, length - (tokens.stop - tokens.start) + 1 - layer.window)
        table = metadata.block_tables[slot]
        keys, values = (_gather(cache, table, first, length) for cache in (key_cache, value_cache))
        output[tokens] = _attend(widened(query[tokens]), keys, values, layer)
    return np.ascontiguousarray(output[..., : layer.value_size])


@op(reference=_paged_attention, triton="pyllm_kernels.gpu.paged_attention.attention")
def paged_attention(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, metadata: AttentionMetadata, layer: AttentionLayer
) -> Tensor:
    """Attention of each row's query tokens over the row's cached tokens (arXiv 2309.06180).

    query [tokens, heads, head_dim] (tokens any stride); key_cache, value_cache
    [num_blocks, block_size, kv_heads, head_dim] of query's dtype, or fp8 (e4m3) -> [tokens, heads, head_dim], or
    `layer.value_size` for a head. Blocks may be apart, by a multiple of a token's features. A CPU takes any mix of
    float32, bfloat16 and float16, but no fp8.

    Token j of a row of Q queries and L cached tokens is at position L - Q + j, attends to the positions up to its own,
    or to later ones, too (`layer.bidirectional`), and its keys are in the cache already. Query head h reads KV head
    `h // (heads // kv_heads)`. `layer` has the scale, window and cap of scores, sinks, slopes and relative bias;
    softmax and sums are float32. Block-table entries before every window of a row are not read. A row's result does not
    depend on other rows; only on a GPU without `batch_invariant` in the metadata, the grouping of its positions in the
    sums does.
    """
    out = graph.empty((*query.shape[:2], layer.value_size or query.shape[2]), query)
    _cpu.ops.paged_attention(query, key_cache, value_cache, metadata, layer, out)
    return out


def _gather(cache: Array, table: Array, first: int, length: int) -> Floats:
    """The cached positions from `first` to before `length`, [positions, kv_heads, head_dim]."""
    first_block, num_blocks = first // cache.shape[1], -(-length // cache.shape[1])
    gathered = cache[table[first_block:num_blocks]]
    start = first_block * cache.shape[1]
    return widened(gathered.reshape(-1, *cache.shape[2:])[first - start : length - start])


def _attend(query: Array, keys: Array, values: Array, layer: AttentionLayer) -> Array:
    """Attention of the last positions to all: query [queries, heads, head_dim], keys [length, kv_heads, head_dim].

    With a window the keys begin at the first query's window. Sums are float64: their last bits depend on the number of
    queries, and get lost in the rounding.
    """
    query, keys, values = (numbers.astype(np.float64) for numbers in (query, keys, values))
    queries, heads, head_dim = query.shape
    length, kv_heads, _ = keys.shape
    grouped = query.reshape(queries, kv_heads, -1, head_dim).transpose(1, 2, 0, 3)  # [kv_heads, group, queries, ...]
    scores = grouped @ keys.transpose(1, 2, 0)[:, None] * layer.scale  # [..., queries, length]
    if (cap := layer.soft_cap) is not None:
        scores = cap * np.tanh(scores / cap)
    distances = np.arange(length) - np.arange(length - queries, length)[:, None]
    if layer.slopes is not None:
        scores = scores - layer.slopes.reshape(kv_heads, -1, 1, 1) * np.abs(distances)
    if layer.relative_bias is not None:
        scores = scores + layer.relative_bias[:, layer.middle_of_bias + distances].reshape(
            kv_heads, -1, *distances.shape
        )
    scores = np.where(_seen(queries, length, layer), scores, -np.inf)
    if layer.sinks is not None:
        sinks = layer.sinks.reshape(kv_heads, -1, 1, 1)
        scores = np.concatenate((scores, np.broadcast_to(sinks, (*scores.shape[:3], 1))), axis=-1)
    attended = softmax(scores)[..., :length] @ values.transpose(1, 0, 2)[:, None]
    return attended.transpose(2, 0, 1, 3).reshape(queries, heads, head_dim).astype(np.float32)


def _seen(queries: int, length: int, layer: AttentionLayer) -> Array:
    """The mask of positions that each of the last tokens attends to; bool [queries, length]."""
    positions = np.arange(length)
    own = positions[length - queries :, None]
    seen: Array = (positions <= own) | layer.bidirectional
    return seen if layer.window is None else seen & (np.abs(positions - own) < layer.window)
