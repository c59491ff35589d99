"""The ops on a CPU, in Rust: each function checks shapes and dtypes, allocates the output and passes addresses.

They take float32 and bfloat16. float16, which no model needs on a CPU, is left to the reference. Does not compute.
"""

from dataclasses import replace

import torch
from torch import Tensor

from pyllm_kernels import _cpu, graph, paged_reference, reference
from pyllm_kernels.block_selection import SUMMARY_PARTS, BlockBudget, KeySummaries, SparseRows
from pyllm_kernels.edits import LogitsEdits
from pyllm_kernels.experts import ClampedSwiglu, ExpertMatrices, Router
from pyllm_kernels.metadata import UNSCALED, AttentionLayer, AttentionMetadata, KVScales, QKNorm

_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
_Rows = tuple[str, int, int]
_Parameters = tuple[int, int, int, int, int]


def add(x: Tensor, residual: Tensor, factor: float = 1.0) -> Tensor:
    if not _are_ours(x):
        return graph.not_captured(reference.add)(x, residual, factor)
    tokens, hidden = x.shape
    _check_shape("residual", residual, (tokens, hidden))
    _check_dtype("residual", residual, x.dtype)
    out = graph.empty((tokens, hidden), x)
    _cpu.add((tokens, hidden), _rows("x", x), _rows("residual", residual), factor, _rows("out", out))
    graph.keep(x, residual)
    return out


def add_bias(x: Tensor, bias: Tensor) -> Tensor:
    if not _are_ours(x, bias):
        return graph.not_captured(reference.add_bias)(x, bias)
    tokens, width = x.shape
    _check_shape("bias", bias, (width,))
    _cpu.add_bias((tokens, width), _rows("x", x), _rows("bias", bias[None]))
    graph.keep(x, bias)
    return x


def scale_and_cap(x: Tensor, factor: float, cap: float | None = None) -> Tensor:
    if not _are_ours(x):
        return graph.not_captured(reference.scale_and_cap)(x, factor, cap)
    tokens, width = x.shape
    _cpu.scale_and_cap((tokens, width), _rows("x", x), factor, cap)
    graph.keep(x)
    return x


def activation(x: Tensor, kind: str, gated: bool = True) -> Tensor:
    if not _are_ours(x):
        return graph.not_captured(reference.activation)(x, kind, gated)
    tokens, width = x.shape
    if gated and width % 2:
        raise ValueError(f"x is {width} wide: it must be a gate and as much to multiply it with")
    size = width // 2 if gated else width
    out = graph.empty((tokens, size), x)
    _cpu.activation(kind, gated, (tokens, size), _rows("x", x), _rows("out", out))
    graph.keep(x)
    return out


def experts(x: Tensor, logits: Tensor, router: Router, kind: str | ClampedSwiglu, matrices: ExpertMatrices) -> Tensor:
    packed = (matrices.gate, matrices.up, matrices.down)
    layouts = [matrix.layout for matrix in packed]
    if not _are_ours(x, logits) or any(layout is None for layout in layouts):
        return graph.not_captured(reference.experts)(x, logits, router, kind, matrices)
    tokens, hidden = x.shape
    _check_shape("logits", logits, (tokens, router.num_experts))
    _check_dtype("logits", logits, x.dtype)
    out = graph.empty((tokens, hidden), x)
    biases = (matrices.gate_bias, matrices.up_bias, matrices.down_bias)
    parts = [
        (layout, matrix.data.data_ptr(), None if bias is None else _bias(bias, router, layout))
        for layout, matrix, bias in zip(layouts, packed, biases, strict=True)
        if layout is not None
    ]
    rule = (router.num_experts, router.active, router.normalised)
    own = (router.first, router.count)
    named = (kind.limit, kind.alpha) if isinstance(kind, ClampedSwiglu) else kind
    _cpu.experts(tokens, _rows("x", x), _rows("logits", logits), rule, own, named, parts, _rows("out", out))
    graph.keep(x, logits, *(matrix.data for matrix in packed), *(bias for bias in biases if bias is not None))
    return out


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
    weights = () if norm is None else (norm.query_weight, norm.key_weight)
    if scales != UNSCALED or not _are_ours(query, key_cache, *weights):
        tensors = query, key, value, positions, cos_sin, slot_mapping, key_cache, value_cache
        return graph.not_captured(paged_reference.rope_and_kv_write)(*tensors, norm, scales, query_scales)
    tokens, heads, head_dim = query.shape
    kv_heads = key_cache.shape[2]
    for name, tensor in (("key", key), ("value", value)):
        _check_shape(name, tensor, (tokens, kv_heads, head_dim))
        _check_dtype(name, tensor, query.dtype)
    num_positions, rotary_size = cos_sin.shape
    _check_dtype("cos_sin", cos_sin, torch.float32)
    _check_contiguous("cos_sin", cos_sin)
    _check_indices("positions", positions, (tokens,))
    _check_indices("slot_mapping", slot_mapping, (tokens,))
    head_norm = None
    if norm is not None:
        for weight in weights:
            _check_shape("a norm's weight", weight, (head_dim,))
        query_weight, key_weight = (_row("a norm's weight", weight) for weight in weights)
        head_norm = query_weight, key_weight, norm.epsilon
    if query_scales is not None:
        _check_shape("query_scales", query_scales, (num_positions,))
        _check_dtype("query_scales", query_scales, torch.float32)
        _check_contiguous("query_scales", query_scales)
    _cpu.rope_and_kv_write(
        (tokens, heads),
        (_rows_of_heads("query", query), _rows_of_heads("key", key), _rows_of_heads("value", value)),
        positions.data_ptr(),
        (cos_sin.data_ptr(), num_positions, rotary_size),
        slot_mapping.data_ptr(),
        _cache(key_cache, value_cache, head_dim),
        head_norm,
        None if query_scales is None else query_scales.data_ptr(),
    )
    graph.keep(query, key, value, positions, cos_sin, slot_mapping, key_cache, value_cache, *weights)
    if query_scales is not None:
        graph.keep(query_scales)
    return None


def paged_attention(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, metadata: AttentionMetadata, layer: AttentionLayer
) -> Tensor:
    if not _are_ours(query, key_cache):
        return graph.not_captured(paged_reference.paged_attention)(query, key_cache, value_cache, metadata, layer)
    tokens, heads, head_dim = query.shape
    out = graph.empty((tokens, heads, head_dim), query)
    _cpu.paged_attention(
        (tokens, heads),
        _rows_of_heads("query", query),
        _cache(key_cache, value_cache, head_dim),
        _batch(metadata),
        (layer.scale, layer.window, layer.soft_cap, _sinks(layer, heads)),
        _rows_of_heads("out", out),
    )
    graph.keep(query, key_cache, value_cache, *(() if layer.sinks is None else (layer.sinks,)))
    return out


def score_blocks(query: Tensor, key_cache: Tensor, rows: SparseRows, scale: float, summaries: KeySummaries) -> Tensor:
    if not _are_ours(query, key_cache):
        return graph.not_captured(paged_reference.score_blocks)(query, key_cache, rows, scale, summaries)
    tokens, heads, head_dim = query.shape
    num_blocks, _, kv_heads, _ = key_cache.shape
    is_sparse = _marks(rows)
    _check_shape("vectors", summaries.vectors, (num_blocks, kv_heads, SUMMARY_PARTS[summaries.kind], head_dim))
    _check_dtype("vectors", summaries.vectors, key_cache.dtype)
    _check_contiguous("vectors", summaries.vectors)
    _check_shape("known", summaries.known, (num_blocks,))
    _check_dtype("known", summaries.known, torch.uint8)
    _check_contiguous("known", summaries.known)
    shares = graph.empty((len(is_sparse), rows.metadata.block_tables.shape[1]), query, "float32")
    _cpu.score_blocks(
        (tokens, heads),
        _rows_of_heads("query", query),
        _cache(key_cache, key_cache, head_dim),
        _batch(rows.metadata),
        is_sparse.data_ptr(),
        scale,
        (summaries.kind, summaries.vectors.data_ptr(), summaries.known.data_ptr()),
        _budget(rows.budget),
        shares.data_ptr(),
    )
    graph.keep(query, key_cache, is_sparse, summaries.vectors, summaries.known)
    return shares


def select_blocks(shares: Tensor, key_cache: Tensor, rows: SparseRows) -> AttentionMetadata:
    if not _are_ours(key_cache):
        return graph.not_captured(paged_reference.select_blocks)(shares, key_cache, rows)
    metadata, is_sparse = rows.metadata, _marks(rows)
    num_rows, max_blocks = len(is_sparse), metadata.block_tables.shape[1]
    _check_shape("shares", shares, (num_rows, max_blocks))
    _check_dtype("shares", shares, torch.float32)
    _check_contiguous("shares", shares)
    tables = graph.empty((num_rows, max_blocks), shares, "int32")
    slots, lengths = graph.empty((num_rows,), shares, "int32"), graph.empty((num_rows,), shares, "int32")
    _cpu.select_blocks(
        metadata.num_tokens,
        shares.data_ptr(),
        _cache(key_cache, key_cache, key_cache.shape[3]),
        _batch(metadata),
        is_sparse.data_ptr(),
        _budget(rows.budget),
        (tables.data_ptr(), slots.data_ptr(), lengths.data_ptr()),
    )
    graph.keep(shares, key_cache, is_sparse)
    return replace(metadata, block_tables=tables, slots=slots, sequence_lengths=lengths)


def copy_blocks(key_cache: Tensor, value_cache: Tensor, copies: Tensor) -> None:
    if key_cache.dtype not in _DTYPES or key_cache.ndim != 4:
        return graph.not_captured(paged_reference.copy_blocks)(key_cache, value_cache, copies)
    num_copies = len(copies)
    _check_indices("copies", copies, (num_copies, 2))
    _cpu.copy_blocks(_cache(key_cache, value_cache, key_cache.shape[3]), copies.data_ptr(), num_copies)
    graph.keep(key_cache, value_cache, copies)
    return None


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    uniforms: Tensor,
    rows: Tensor | None = None,
) -> Tensor:
    """Choose tokens from logits [rows, vocabulary], float32 or bfloat16 -> int32 [samples].

    Temperature, top-p, min-p and uniforms are float32 [samples], top-k is int32 [samples]; a temperature of 0 takes the
    first of the greatest logits. The token is -1 if no logit is above minus infinity. `rows` int32 [samples] is each
    sample's row of logits; None: sample i has row i.
    """
    (samples,) = uniforms.shape
    for name, tensor, dtype in (
        ("temperature", temperature, torch.float32),
        ("top_k", top_k, torch.int32),
        ("top_p", top_p, torch.float32),
        ("min_p", min_p, torch.float32),
        ("uniforms", uniforms, torch.float32),
    ):
        _check_shape(name, tensor, (samples,))
        _check_dtype(name, tensor, dtype)
        _check_contiguous(name, tensor)
    out = _sample(
        logits,
        samples,
        rows,
        (temperature.data_ptr(), top_k.data_ptr(), top_p.data_ptr(), min_p.data_ptr(), uniforms.data_ptr()),
    )
    graph.keep(temperature, top_k, top_p, min_p, uniforms)
    return out


def sample_greedily(logits: Tensor, rows: Tensor | None = None) -> Tensor:
    """The first of the greatest logits of each sample, as `sample` at temperature 0; reads the logits once."""
    return _sample(logits, len(logits) if rows is None else len(rows), rows, None)


def _sample(logits: Tensor, samples: int, rows: Tensor | None, parameters: _Parameters | None) -> Tensor:
    num_rows, vocabulary = logits.shape
    if logits.dtype not in _DTYPES:
        raise ValueError(f"logits are {logits.dtype}: give float32 or bfloat16")
    if rows is not None:
        _check_indices("rows", rows, (samples,))
    out = graph.empty((samples,), logits, "int32")
    _cpu.sample(
        samples,
        (num_rows, vocabulary),
        _rows("logits", logits),
        None if rows is None else rows.data_ptr(),
        parameters,
        out.data_ptr(),
    )
    graph.keep(logits, *(() if rows is None else (rows,)))
    return out


def edit_logits(
    logits: Tensor,
    rows: Tensor,
    edits: LogitsEdits,
    mask_rows: Tensor | None = None,
    masks: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    if logits.dtype not in _DTYPES:
        return graph.not_captured(reference.edit_logits)(logits, rows, edits, mask_rows, masks, out)
    num_rows, vocabulary = logits.shape
    (samples,) = rows.shape
    (num_edits,) = edits.ids.shape
    _check_indices("rows", rows, (samples,))
    _check_indices("starts", edits.starts, (samples + 1,))
    _check_indices("ids", edits.ids, (num_edits,))
    numbers = edits.bias, edits.repetition, edits.subtracted
    for name, tensor in zip(("bias", "repetition", "subtracted"), numbers, strict=True):
        _check_shape(name, tensor, (num_edits,))
        _check_dtype(name, tensor, torch.float32)
        _check_contiguous(name, tensor)
    bias, repetition, subtracted = numbers
    if out is None:
        out = graph.empty((samples, vocabulary), logits, "float32")
    _check_shape("out", out, (samples, vocabulary))
    _check_dtype("out", out, torch.float32)
    _check_contiguous("out", out)
    _cpu.edit_logits(
        samples,
        (num_rows, vocabulary),
        _rows("logits", logits),
        rows.data_ptr(),
        (
            edits.starts.data_ptr(),
            edits.ids.data_ptr(),
            bias.data_ptr(),
            repetition.data_ptr(),
            subtracted.data_ptr(),
            num_edits,
        ),
        None if mask_rows is None or masks is None else _masks(samples, mask_rows, masks),
        out.data_ptr(),
    )
    graph.keep(logits, rows, edits.starts, edits.ids, *numbers, out)
    graph.keep(*(tensor for tensor in (mask_rows, masks) if tensor is not None))
    return out


def logprobs(logits: Tensor, rows: Tensor, chosen: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor]:
    if logits.dtype not in _DTYPES:
        return graph.not_captured(reference.logprobs)(logits, rows, chosen, num_top)
    (samples,) = rows.shape
    _check_indices("rows", rows, (samples,))
    _check_indices("chosen", chosen, (samples,))
    ids = graph.empty((samples, 1 + num_top), logits, "int32")
    values = graph.empty((samples, 1 + num_top), logits, "float32")
    ranks = graph.empty((samples,), logits, "int32")
    _cpu.logprobs(
        samples,
        (logits.shape[0], logits.shape[1]),
        _rows("logits", logits),
        rows.data_ptr(),
        chosen.data_ptr(),
        num_top,
        (ids.data_ptr(), values.data_ptr(), ranks.data_ptr()),
    )
    graph.keep(logits, rows, chosen)
    return ids, values, ranks


def _masks(samples: int, mask_rows: Tensor, masks: Tensor) -> tuple[int, int, tuple[int, int]]:
    _check_indices("mask_rows", mask_rows, (samples,))
    _check_contiguous("masks", masks)
    if masks.ndim != 2 or masks.dtype not in (torch.int32, torch.uint32):
        raise ValueError(f"masks are {masks.dtype} of {masks.ndim} dimensions: give rows of int32 or uint32")
    return mask_rows.data_ptr(), masks.data_ptr(), (masks.shape[0], masks.shape[1])


def _are_ours(*tensors: Tensor) -> bool:
    return all(tensor.dtype in _DTYPES for tensor in tensors)


def _rows(name: str, tensor: Tensor) -> _Rows:
    """The dtype, address and row stride of a matrix whose rows are contiguous."""
    if not tensor.is_cpu or (tensor.stride(1) != 1 and tensor.shape[1] > 1):
        raise ValueError(f"{name} is on {tensor.device} with strides {tensor.stride()}: give contiguous rows on a CPU")
    return _DTYPES[tensor.dtype], tensor.data_ptr(), tensor.stride(0)


def _row(name: str, tensor: Tensor) -> _Rows:
    """The dtype, address and length of a contiguous vector, as a matrix of one row."""
    _check_contiguous(name, tensor)
    return _DTYPES[tensor.dtype], tensor.data_ptr(), len(tensor)


def _rows_of_heads(name: str, tensor: Tensor) -> _Rows:
    """The dtype, address and token stride of [tokens, heads, head_dim] whose tokens are contiguous."""
    _, heads, head_dim = tensor.shape
    if not tensor.is_cpu or tensor.stride(2) != 1 or (tensor.stride(1) != head_dim and heads > 1):
        raise ValueError(f"{name} is on {tensor.device} with strides {tensor.stride()}: give contiguous heads on a CPU")
    return _DTYPES[tensor.dtype], tensor.data_ptr(), tensor.stride(0)


def _bias(bias: Tensor, router: Router, layout: _cpu.Linear) -> _Rows:
    _check_shape("a bias of experts", bias, (router.count, layout.out_features // router.count))
    return _rows("a bias of experts", bias)


def _sinks(layer: AttentionLayer, heads: int) -> int | None:
    if layer.sinks is None:
        return None
    _check_shape("sinks", layer.sinks, (heads,))
    _check_dtype("sinks", layer.sinks, torch.float32)
    _check_contiguous("sinks", layer.sinks)
    return layer.sinks.data_ptr()


def _batch(metadata: AttentionMetadata) -> tuple[int, tuple[int, int], int, int, int, int]:
    (rows,) = metadata.slots.shape
    num_slots, max_blocks = metadata.block_tables.shape
    _check_indices("block_tables", metadata.block_tables, (num_slots, max_blocks))
    _check_indices("slots", metadata.slots, (rows,))
    _check_indices("query_starts", metadata.query_starts, (rows + 1,))
    _check_indices("sequence_lengths", metadata.sequence_lengths, (rows,))
    tensors = metadata.block_tables, metadata.slots, metadata.query_starts, metadata.sequence_lengths
    graph.keep(*tensors)
    tables, *others = (tensor.data_ptr() for tensor in tensors)
    slots, query_starts, sequence_lengths = others
    return tables, (num_slots, max_blocks), slots, query_starts, sequence_lengths, rows


def _marks(rows: SparseRows) -> Tensor:
    _check_indices("is_sparse", rows.is_sparse, tuple(rows.metadata.slots.shape))
    return rows.is_sparse


def _budget(budget: BlockBudget) -> tuple[int, int, int]:
    return budget.num_sink_blocks, budget.top_k, budget.num_recent_blocks


def _cache(key_cache: Tensor, value_cache: Tensor, head_dim: int) -> tuple[str, int, int, tuple[int, int, int, int]]:
    num_blocks, block_size, kv_heads, _ = key_cache.shape
    shape = num_blocks, block_size, kv_heads, head_dim
    for name, cache in (("key_cache", key_cache), ("value_cache", value_cache)):
        _check_shape(name, cache, shape)
        _check_dtype(name, cache, key_cache.dtype)
        _check_contiguous(name, cache)
    return _DTYPES[key_cache.dtype], key_cache.data_ptr(), value_cache.data_ptr(), shape


def _check_indices(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    _check_shape(name, tensor, shape)
    _check_dtype(name, tensor, torch.int32)
    _check_contiguous(name, tensor)


def _check_shape(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tensor.shape != shape:
        raise ValueError(f"{name} is of shape {list(tensor.shape)}: it must be of {list(shape)}")


def _check_dtype(name: str, tensor: Tensor, dtype: torch.dtype) -> None:
    if tensor.dtype is not dtype:
        raise ValueError(f"{name} is {tensor.dtype}: give {dtype}")


def _check_contiguous(name: str, tensor: Tensor) -> None:
    if not tensor.is_cpu or not tensor.is_contiguous():
        raise ValueError(f"{name} is on {tensor.device} with strides {tensor.stride()}: give a contiguous CPU tensor")
