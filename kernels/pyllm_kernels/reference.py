"""The torch twin of every op: the specification, what the tests compare with, and what runs where nothing else does.

It reads lengths on the host, so on CUDA it waits for the device; `dispatch.py` documents the ops' arguments.
"""

import ctypes
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from pyllm_kernels.block_selection import KeySummaries, SparseRows
from pyllm_kernels.cpu_linear import INT8_BLOCKS, NotFiniteError, PackedLinear
from pyllm_kernels.edits import LogitsEdits
from pyllm_kernels.experts import ClampedSwiglu, ExpertMatrices, Router
from pyllm_kernels.matrix_rows import FLOAT_DTYPES, GGUF_BLOCKS, MatrixRows, check_alike, dtype_name, empty_bytes
from pyllm_kernels.metadata import AttentionLayer, AttentionMetadata, AttentionShape, KVScales, QKNorm
from pyllm_kernels.quantised_shapes import check_w8a8, fp8_block, fp8_scale_block, w4a16_group_size, w8a16_group_size

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
}
_GROUP = 32
_UNSCALED = KVScales()
# Exponentials of at most 1 are summed up as whole numbers of this unit: exactly, so in any order. 2^20 of them fit.
_EXPONENTIAL_UNIT = 2.0**-42


def pack_linear(weight: Tensor) -> PackedLinear:
    return PackedLinear(weight, dtype_name(weight.dtype), weight.dtype, None)


def pack_rows(
    parts: Sequence[MatrixRows], weight_format: str, dtype: torch.dtype, room: Callable[[int], Tensor] = empty_bytes
) -> PackedLinear:
    del room
    check_alike(parts)
    kinds = {part.format for part in parts}
    if weight_format not in ("int8", *FLOAT_DTYPES) and kinds != {weight_format}:
        raise ValueError(f"{weight_format} cannot be packed from rows of {', '.join(sorted(kinds))}")
    numbers = torch.cat([part.numbers() for part in parts])
    if len(odd := (~numbers.isfinite().all(1)).nonzero()):
        raise NotFiniteError(int(odd[0]))
    if weight_format in FLOAT_DTYPES:
        return PackedLinear(numbers.to(dtype), weight_format, dtype, None)
    if weight_format == "int8":
        in_blocks = len(kinds) == 1 and kinds <= set(INT8_BLOCKS)
        numbers = torch.cat([_int8(part, in_blocks) for part in parts])
    return PackedLinear(numbers, weight_format, dtype, None)


def packed_linear(x: Tensor, packed: PackedLinear, out: Tensor | None = None) -> Tensor:
    if packed.format in {"q4_0", "q4_1"} and packed.factors:
        scales, minimums = packed.factors
        return linear_w4a16(x, packed.data, scales, minimums, out)
    if packed.format == "q8_0" and packed.factors:
        return linear_w8a16(x, packed.data, packed.factors[0], out)
    if packed.format == "int8" and packed.factors:
        return linear_w8a8(x, packed.data, packed.factors[0], out)
    if packed.format == "float8_e4m3fn":
        return linear_fp8(x, packed.data, packed.factors[0], out, fp8_block(packed))
    product = _product(x, packed).to(x.dtype)
    return product if out is None else out.copy_(product)


def packed_rows(packed: PackedLinear, rows: Tensor) -> Tensor:
    if packed.format != "int8":
        return F.embedding(rows, packed.data).to(packed.dtype)
    scales, integers = packed.data[rows].tensor_split([1], dim=1)
    return (scales * integers).to(packed.dtype)


def linear_w4a16(x: Tensor, integers: Tensor, scales: Tensor, minimums: Tensor, out: Tensor | None = None) -> Tensor:
    group_size = w4a16_group_size(x, integers, scales, minimums, out)
    halves = integers.view(len(integers), -1, _GROUP // 2)  # [out_features, groups of 32, bytes]
    grouped = torch.cat((halves & 15, halves >> 4), dim=-1).view(*scales.shape, group_size)
    weight = scales.float().unsqueeze(-1) * grouped + minimums.float().unsqueeze(-1)
    product = F.linear(x.float(), weight.flatten(1).to(x.dtype).float()).to(x.dtype)
    return product if out is None else out.copy_(product)


def linear_w8a16(x: Tensor, integers: Tensor, scales: Tensor, out: Tensor | None = None) -> Tensor:
    group_size = w8a16_group_size(x, integers, scales, out)
    weight = scales.float().unsqueeze(-1) * integers.view(*scales.shape, group_size)
    product = F.linear(x.float(), weight.flatten(1).to(x.dtype).float()).to(x.dtype)
    return product if out is None else out.copy_(product)


def linear_w8a8(x: Tensor, integers: Tensor, scales: Tensor, out: Tensor | None = None) -> Tensor:
    check_w8a8(x, integers, scales, out)
    x_scales, x_integers = _quantise(x.float())
    # float64 has room for every sum of these integers.
    product = ((x_scales * scales) * (x_integers.double() @ integers.double().T).float()).to(x.dtype)
    return product if out is None else out.copy_(product)


def linear_fp8(
    x: Tensor, weight: Tensor, scales: Tensor, out: Tensor | None = None, block: tuple[int, int] = (128, 128)
) -> Tensor:
    block_out, block_in = fp8_scale_block(x, weight, scales, out, block)
    of_rows = scales.repeat_interleave(block_out, dim=0)[: weight.shape[0]]
    of_weights = of_rows.repeat_interleave(block_in, dim=1)[:, : weight.shape[1]]
    product = F.linear(x.float(), weight.float() * of_weights).to(x.dtype)
    return product if out is None else out.copy_(product)


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    wide = x.float()
    inverse_rms = torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)  # [tokens, 1]
    return (wide * inverse_rms * weight.float()).to(x.dtype)


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, epsilon: float, factor: float = 1.0
) -> tuple[Tensor, Tensor]:
    total = add(x, residual, factor)
    return rms_norm(total, weight, epsilon), total


def layer_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    wide = x.float()
    centred = wide - wide.mean(-1, keepdim=True)
    inverse_deviation = torch.rsqrt(centred.square().mean(-1, keepdim=True) + epsilon)  # [tokens, 1]
    return (centred * inverse_deviation * weight.float()).to(x.dtype)


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, epsilon: float, factor: float = 1.0
) -> tuple[Tensor, Tensor]:
    total = add(x, residual, factor)
    return layer_norm(total, weight, epsilon), total


def add(x: Tensor, residual: Tensor, factor: float = 1.0) -> Tensor:
    return (x.float() * factor + residual.float()).to(x.dtype)


def add_bias(x: Tensor, bias: Tensor) -> Tensor:
    return x.copy_(x.float() + bias.float())


def scale_and_cap(x: Tensor, factor: float, cap: float | None = None) -> Tensor:
    scaled = x.float() * factor
    return x.copy_(scaled if cap is None else cap * torch.tanh(scaled / cap))


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
    scales: KVScales = _UNSCALED,
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


def activation(x: Tensor, kind: str, gated: bool = True) -> Tensor:
    gate, up = x.float().chunk(2, dim=-1) if gated else (x.float(), None)
    activated = ACTIVATIONS[kind](gate)
    return (activated if up is None else activated * up).to(x.dtype)


def experts(x: Tensor, logits: Tensor, router: Router, kind: str | ClampedSwiglu, matrices: ExpertMatrices) -> Tensor:
    scores = logits.float()
    chosen = scores.sort(dim=-1, descending=True, stable=True).indices[:, : router.active]
    weights = scores.softmax(dim=-1).gather(1, chosen)
    if router.normalised:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for index in range(router.count):
        tokens, places = (chosen == router.first + index).nonzero(as_tuple=True)
        if len(tokens):
            gate, up, down = (_expert(packed, index, router) for packed in (matrices.gate, matrices.up, matrices.down))
            rows = x[tokens]
            gates = _biased(packed_linear(rows, gate), matrices.gate_bias, index)
            ups = _biased(packed_linear(rows, up), matrices.up_bias, index)
            inner = _combine(gates, ups, kind).to(x.dtype)
            result = _biased(packed_linear(inner, down), matrices.down_bias, index)
            total.index_add_(0, tokens, weights[tokens, places].unsqueeze(-1) * result)
    return total.to(x.dtype)


def _biased(product: Tensor, bias: Tensor | None, index: int) -> Tensor:
    return product.float() if bias is None else product.float() + bias[index].float()


def _combine(gate: Tensor, up: Tensor, kind: str | ClampedSwiglu) -> Tensor:
    if not isinstance(kind, ClampedSwiglu):
        return ACTIVATIONS[kind](gate) * up
    gate, up = gate.clamp(max=kind.limit), up.clamp(-kind.limit, kind.limit)
    return (up + 1) * gate * torch.sigmoid(kind.alpha * gate)


def _expert(packed: PackedLinear, index: int, router: Router) -> PackedLinear:
    size = packed.out_features // router.count
    rows = slice(index * size, (index + 1) * size)
    return replace(packed, data=packed.data[rows], factors=tuple(factor[rows] for factor in packed.factors))


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
        # Of equal shares the first: torch's `topk` promises no order.
        best = shares[row, : end - first].sort(descending=True, stable=True).indices[: budget.top_k].sort().values
        kept = tables[row, first:end][best]
        chosen = torch.cat((tables[row, :first], kept, tables[row, end : end + budget.num_recent_blocks]))
        tables[row, : len(chosen)] = chosen
        lengths[row] -= (end - first - budget.top_k) * block_size
    slots = torch.arange(num_rows, dtype=torch.int32, device=lengths.device)
    return replace(metadata, block_tables=tables, slots=slots, sequence_lengths=lengths, tasks=None)


def _selecting_rows(key_cache: Tensor, rows: SparseRows) -> Iterator[tuple[int, int, int]]:
    """The rows that leave blocks out, and where the blocks begin and end of which they keep the best."""
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
    """What each block gets of a token's attention, summed over the heads, if all of its keys have its score.

    query [heads, head_dim], scaled; summaries [blocks, kv_heads, parts, head_dim] -> [blocks].
    """
    blocks, kv_heads, parts, head_dim = summaries.shape
    query = query.view(kv_heads, -1, head_dim)
    by_part = (query,) if parts == 1 else (query.clamp(min=0), query.clamp(max=0))
    scores = torch.zeros((kv_heads, query.shape[1], blocks), device=query.device)
    for index, part in enumerate(by_part):
        scores += part @ summaries[:, :, index].permute(1, 2, 0)
    return scores.softmax(dim=-1).sum(dim=(0, 1))


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


def edit_logits(
    logits: Tensor,
    rows: Tensor,
    edits: LogitsEdits,
    mask_rows: Tensor | None = None,
    masks: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    edited = logits[rows.long()].float()  # [samples, vocabulary]
    num_samples, vocabulary = edited.shape
    if mask_rows is not None and masks is not None:
        edited.masked_fill_(_banned(masks, vocabulary)[mask_rows.long()], -torch.inf)
    starts = edits.starts.long()
    samples = torch.arange(num_samples, device=logits.device)
    of_edits = torch.repeat_interleave(samples, starts.diff(), output_size=len(edits.ids))
    places = of_edits * vocabulary + edits.ids
    biased = edited.view(-1)[places] + edits.bias
    penalised = torch.where(biased > 0, biased / edits.repetition, biased * edits.repetition)
    edited.view(-1)[places] = penalised - edits.subtracted
    return edited if out is None else out.copy_(edited)


def logprobs(logits: Tensor, rows: Tensor, chosen: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor]:
    wide = logits[rows.long()].float()  # [samples, vocabulary]
    wide = wide.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    ids = chosen.long().unsqueeze(-1)
    ranks = (wide >= wide.gather(1, ids)).sum(-1)
    ids = torch.cat((ids, _first_best(wide, num_top)), dim=-1)
    greatest = wide.amax(-1, keepdim=True)
    exponentials = (wide - greatest).exp_().nan_to_num_(nan=0.0)
    sums = (exponentials.double() / _EXPONENTIAL_UNIT).round_().long().sum(-1, keepdim=True) * _EXPONENTIAL_UNIT
    told = wide.gather(1, ids).double()
    values = torch.where(told == -torch.inf, told, told - greatest.double() - sums.log())
    return ids.int(), values.float(), ranks.int()


def _product(x: Tensor, packed: PackedLinear) -> Tensor:
    if packed.format in FLOAT_DTYPES:
        return F.linear(x, packed.data)
    if packed.format == "int8":
        scales, integers = packed.data.tensor_split([1], dim=1)
        x_scales, x_integers = _quantise(x.float(), 127 * 128)
        # float64 has room for every sum of integers that is exact in Rust.
        return (x_scales * scales[:, 0]) * (x_integers.double() @ integers.double().T).float()
    x_scales, x_integers = _quantise(x.float().view(len(x), x.shape[1] // _GROUP, _GROUP))
    return ((x_scales.double() * x_integers).flatten(1) @ packed.data.double().T).float()


def _int8(part: MatrixRows, in_blocks: bool) -> Tensor:
    """The scale of each row, then its integers: [rows, 1 + in_features]."""
    if part.is_int8 and part.scales is not None:
        unscaled = replace(part, scales=part.scales._replace(numbers=torch.ones(len(part), 1)))
        return torch.cat((part.scales.numbers, unscaled.numbers()), dim=1)
    return torch.cat(_quantise(_int8_of_blocks(part) if in_blocks else part.numbers()), dim=1)


def _int8_of_blocks(part: MatrixRows) -> Tensor:
    """The numbers that 8 bits make of GGUF's 4: see `_cpu.Linear`."""
    features, block_bytes = GGUF_BLOCKS[part.format]
    row_bytes = part.in_features // features * block_bytes
    rows = [
        ctypes.string_at(address, row_bytes) if address else bytes(row_bytes) for address in part.addresses.tolist()
    ]
    blocks = torch.frombuffer(bytearray().join(rows), dtype=torch.uint8).view(len(part), -1, block_bytes)
    scales = _half(blocks[..., :2])
    start, minimums = (4, _half(blocks[..., 2:4])) if part.format == "q4_1" else (2, -8 * scales)
    nibbles = torch.cat((blocks[..., start:] & 15, blocks[..., start:] >> 4), dim=-1)
    ends = torch.cat((minimums, 15 * scales + minimums), dim=-1).flatten(1)
    row_scales = (ends.abs().amax(-1) / 127)[:, None, None]
    steps, starts = (torch.round(256 * numbers / row_scales).nan_to_num() for numbers in (scales, minimums))
    return (row_scales * torch.floor((steps * nibbles + starts + 128) / 256)).flatten(1)


def _quantise(groups: Tensor, steps: int = 127) -> tuple[Tensor, Tensor]:
    """The scale of each group [..., features] and its integers, up to `steps`, halves to even."""
    largest = groups.abs().amax(-1, keepdim=True)
    tiny = largest < 2.0**-100
    scales = torch.where(largest.isfinite(), (largest / steps).masked_fill(tiny, 0), torch.nan)
    inverse = torch.full_like(largest, steps) / largest  # `steps / largest` would be rounded twice
    return scales, torch.round(groups * inverse.masked_fill(tiny, 0))


def _half(pairs: Tensor) -> Tensor:
    return pairs.contiguous().view(torch.float16).float()


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
        cache = cache.view(torch.uint8)  # torch indexes bytes on every device, and fp8 on none of them surely.
    cache.flatten(0, 1).index_copy_(0, slot_mapping.long(), numbers.to(cache.dtype))


def _gather(cache: Tensor, table: Tensor, first: int, length: int) -> Tensor:
    """The positions from `first` to before `length`, [positions, kv_heads, head_dim]."""
    first_block, num_blocks = first // cache.shape[1], -(-length // cache.shape[1])
    cells = cache.view(torch.uint8) if cache.dtype is torch.float8_e4m3fn else cache
    gathered = cells.index_select(0, table[first_block:num_blocks]).view(cache.dtype)
    start = first_block * cache.shape[1]
    return gathered.flatten(0, 1)[first - start : length - start]


def _attend(query: Tensor, keys: Tensor, values: Tensor, layer: AttentionLayer) -> Tensor:
    """Attention of the last positions over all: query [queries, heads, head_dim], keys [length, kv_heads, head_dim].

    With a window the keys begin where the first query's window does.
    """
    queries, heads, head_dim = query.shape
    length, kv_heads, _ = keys.shape
    keys, values = keys.transpose(0, 1), values.transpose(0, 1)  # [kv_heads, length, head_dim]
    is_windowed = layer.window is not None and layer.window < length
    if layer.soft_cap is not None or layer.sinks is not None:
        return _attend_by_scores(query, keys, values, layer)
    if queries == 1 and not is_windowed:
        # A lone query sees every key, so the heads that share a KV head can stand where queries do.
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
    """Which positions each of the last tokens sees; bool [queries, length]."""
    positions = torch.arange(length, device=device)
    own = positions[length - queries :, None]
    seen = positions <= own
    return seen if layer.window is None else seen & (positions > own - layer.window)


def _banned(masks: Tensor, vocabulary: int) -> Tensor:
    """Where bits are 0 or missing; bool [masks + 1, vocabulary], of which the last, mask -1, bans nothing."""
    shifts = torch.arange(32, dtype=torch.int32, device=masks.device)
    bits = (masks.view(torch.int32).unsqueeze(-1) >> shifts & 1).flatten(1)[:, :vocabulary]
    banned = F.pad(bits == 0, (0, vocabulary - bits.shape[1]), value=True)
    return F.pad(banned, (0, 0, 0, 1), value=False)


def _first_best(numbers: Tensor, count: int) -> Tensor:
    """The places of the greatest of each row, equal ones by ascending place; int64 [rows, count]."""
    bits = (numbers + 0.0).view(torch.int32)  # 0 has two signs, of which this leaves one.
    ordered = bits ^ (bits >> 31 & 0x7FFFFFFF)  # As floats are ordered.
    places = torch.arange(numbers.shape[1], device=numbers.device)
    keys = (ordered.long() << 32) + (0xFFFFFFFF - places)
    return 0xFFFFFFFF - (keys.topk(count, dim=-1).values & 0xFFFFFFFF)
