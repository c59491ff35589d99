"""The torch reference of each op on rows: its specification, for tests, and for devices and dtypes without a kernel.
`paged_reference.py` has the ops on the KV cache; `ops.py` documents all of them.
"""

import ctypes
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from pyllm_kernels.cpu_linear import INT8_BLOCKS, NotFiniteError, PackedLinear
from pyllm_kernels.experts import ClampedSwiglu, ExpertMatrices, Router
from pyllm_kernels.matrix_rows import FLOAT_DTYPES, GGUF_BLOCKS, MatrixRows, check_alike, empty_bytes
from pyllm_kernels.quantised_shapes import check_w8a8, fp8_block, fp8_scale_block, w4a16_group_size, w8a16_group_size
from pyllm_kernels.tensors import dtype_name

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
}
_GROUP = 32


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
    # Every sum of these integers is exact in float64.
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


def _product(x: Tensor, packed: PackedLinear) -> Tensor:
    if packed.format in FLOAT_DTYPES:
        return F.linear(x, packed.data)
    if packed.format == "int8":
        scales, integers = packed.data.tensor_split([1], dim=1)
        x_scales, x_integers = _quantise(x.float(), 127 * 128)
        # Every sum of integers that is exact in Rust is exact in float64.
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
    """The numbers of GGUF's 4-bit blocks as 8-bit integers: see `_cpu.Linear`."""
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
    """The scale of each group [..., features] and its integers, up to `steps` in magnitude, halves to even."""
    largest = groups.abs().amax(-1, keepdim=True)
    tiny = largest < 2.0**-100
    scales = torch.where(largest.isfinite(), (largest / steps).masked_fill(tiny, 0), torch.nan)
    inverse = torch.full_like(largest, steps) / largest  # `steps / largest` would be rounded twice
    return scales, torch.round(groups * inverse.masked_fill(tiny, 0))


def _half(pairs: Tensor) -> Tensor:
    return pairs.contiguous().view(torch.float16).float()
