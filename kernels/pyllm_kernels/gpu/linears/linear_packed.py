"""Matrices of files in the formats of the Triton linears, and the choice of a linear. Knows no file."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pyllm_kernels.cards import Card
from pyllm_kernels.gpu.linears.linear_fp8 import linear_fp8
from pyllm_kernels.gpu.linears.linear_w4a16 import linear_w4a16
from pyllm_kernels.gpu.linears.linear_w8a8 import linear_w8a8
from pyllm_kernels.gpu.linears.linear_w8a16 import linear_w8a16
from pyllm_kernels.matrix_rows import FLOAT_DTYPES, GGUF_BLOCKS, GRID_FORMATS, MatrixRows, check_alike, empty_bytes
from pyllm_kernels.ops import packed_linear as ops
from pyllm_kernels.ops.packed_linear import NotFiniteError, PackedLinear
from pyllm_kernels.quantised_shapes import FP8_SCALE_UNIT
from pyllm_kernels.tensors import Array, numpy_dtype, widened
from pyllm_kernels.torch_bridge import on_host

_FLOAT8 = "float8_e4m3fn"
_FOUR_BITS = {"q4_0", "q4_1"}
_EIGHT_BITS = "q8_0"
# A block is a float16 and 32 integers, which fit into 8 bits, or indices into a codebook: packing is lossless.
_MADE_8_BITS = {"q8_0", "q5_0", "iq4_nl"}
_GROUP, _HALF_OF_A_GROUP = 32, 16
# `kvalues_iq4nl` of ggml.
_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def kept_format(rows: MatrixRows) -> str:
    if rows.format in _FOUR_BITS or rows.is_int8:
        return rows.format
    if rows.format in _MADE_8_BITS or rows.format in GRID_FORMATS:
        return _EIGHT_BITS
    if rows.format == _FLOAT8 and rows.scales is not None:
        features = rows.scales.features
        return _FLOAT8 if features % FP8_SCALE_UNIT == 0 or features >= rows.in_features else ""
    return ""


def pack_linear(weight: Tensor) -> PackedLinear:
    return ops.pack_linear.reference(weight)


def pack_rows(
    parts: Sequence[MatrixRows], weight_format: str, dtype: str, room: Callable[[int], Array] = empty_bytes
) -> PackedLinear:
    if any(kept_format(part) != weight_format for part in parts):
        return ops.pack_rows.reference(parts, weight_format, dtype, room)
    check_alike(parts)
    num_rows, scales = sum(map(len, parts)), [part.scales for part in parts if part.scales is not None]
    if weight_format in _FOUR_BITS:
        data, *factors = _joined(map(_in_4_bits, parts))
    elif weight_format == _EIGHT_BITS:
        data, *factors = _joined(map(_in_8_bits, parts))
    else:
        data = np.concatenate([part.stored() for part in parts]).view(numpy_dtype(weight_format))
        numbers = np.concatenate([part.numbers for part in scales])
        factors = [numbers.reshape(-1) if weight_format == "int8" else numbers]
    odd = np.any([~np.isfinite(factor.reshape(num_rows, -1)).all(1) for factor in factors], 0)
    if weight_format == _FLOAT8:
        odd |= (data.view(np.uint8) & 0x7F == 0x7F).any(1)  # NaNs
    if odd.any():
        raise NotFiniteError(int(odd.argmax()))
    scale_features = scales[0].features if scales else 0
    return PackedLinear(data, weight_format, dtype, None, tuple(factors), scale_features)


def packed_linear(
    x: Tensor,
    packed: PackedLinear,
    out: Tensor | None = None,
    *,
    batch_invariant: bool = False,
    card: Card | None = None,
) -> Tensor:
    """Multiply by the linear of the format; for weights with factors, `batch_invariant` uses one tile for any rows."""
    if not packed.factors:
        if packed.format not in FLOAT_DTYPES:
            result: Tensor = on_host(ops.packed_linear.reference)(x, packed, out)
            return result
        product = F.linear(x, packed.data)
        return product if out is None else out.copy_(product)
    if packed.format == "int8":
        return linear_w8a8(x, packed.data, packed.factors[0], out, card=card)
    if packed.format == _FLOAT8:
        block = packed.fp8_block
        return linear_fp8(x, packed.data, packed.factors[0], out, block, batch_invariant=batch_invariant, card=card)
    if packed.format == _EIGHT_BITS:
        return linear_w8a16(x, packed.data, packed.factors[0], out, batch_invariant=batch_invariant, card=card)
    scales, minimums = packed.factors
    return linear_w4a16(x, packed.data, scales, minimums, out, batch_invariant=batch_invariant, card=card)


def packed_rows(packed: PackedLinear, rows: Tensor) -> Tensor:
    if not packed.factors:
        if packed.format not in FLOAT_DTYPES:
            found: Tensor = on_host(ops.packed_rows.reference)(packed, rows)
            return found
        return F.embedding(rows, packed.data)
    dtype: torch.dtype = getattr(torch, packed.dtype)
    stored: Tensor = packed.data.view(torch.uint8)[rows]
    factors: list[Tensor] = [factor[rows].float() for factor in packed.factors]
    if packed.format in _FOUR_BITS:
        halves = stored.view(len(rows), -1, _HALF_OF_A_GROUP)
        integers = torch.cat((halves & 15, halves >> 4), dim=-1)  # [rows, groups, 32]
        return (factors[0].unsqueeze(-1) * integers + factors[1].unsqueeze(-1)).flatten(1).to(dtype)
    elements = stored.view(packed.data.dtype).float()
    if packed.format == "int8":
        return (factors[0].unsqueeze(-1) * elements).to(dtype)
    scale_features = _GROUP if packed.format == _EIGHT_BITS else packed.scale_features
    scales = factors[0].repeat_interleave(scale_features, dim=1)[:, : elements.shape[1]]
    return (scales * elements).to(dtype)


def _joined(parts: Iterable[Sequence[Array]]) -> list[Array]:
    return [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]


def _in_4_bits(part: MatrixRows) -> tuple[Array, Array, Array]:
    """Integers uint8 [rows, features / 2], scales and minimums float16 [rows, groups]."""
    blocks = _blocks(part)
    halves = np.ascontiguousarray(blocks[..., :-_HALF_OF_A_GROUP]).view(np.float16)  # [rows, groups, 1 or 2]
    with np.errstate(over="ignore"):
        minimums = halves[..., 1] if part.format == "q4_1" else -8 * halves[..., 0]
    return blocks[..., -_HALF_OF_A_GROUP:].reshape(len(part), -1), halves[..., 0], minimums


def _in_8_bits(part: MatrixRows) -> tuple[Array, Array]:
    """Integers int8 [rows, features] and scales float16 [rows, groups]; formats with a grid are requantised."""
    if part.format in GRID_FORMATS:
        groups = part.numbers().reshape(len(part), -1, _GROUP)
        scales = (np.abs(groups).max(-1) / 127).astype(np.float16)
        steps = np.divide(groups, widened(scales)[..., None], out=np.zeros_like(groups), where=scales[..., None] != 0)
        return np.clip(np.rint(steps), -127, 127).astype(np.int8).reshape(len(part), -1), scales
    blocks = _blocks(part)
    scales = np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0]
    if part.format == "q8_0":
        integers = blocks[..., 2:].view(np.int8)
    else:
        halves = blocks[..., -_HALF_OF_A_GROUP:]
        integers = np.concatenate((halves & 15, halves >> 4), -1)  # [rows, groups, 32]
        if part.format == "iq4_nl":
            integers = np.array(_IQ4, np.int8)[integers]
        else:
            fifths = np.unpackbits(blocks[..., 2:6], axis=-1, bitorder="little")
            integers = (integers | fifths << 4).view(np.int8) - np.int8(16)
    return integers.reshape(len(part), -1), scales


def _blocks(part: MatrixRows) -> Array:
    return part.stored().reshape(len(part), -1, GGUF_BLOCKS[part.format][1])
