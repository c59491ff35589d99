"""Products with packed matrices, and their rows.

On a CPU a row's result does not depend on other rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from pyllm_kernels import _cpu, graph
from pyllm_kernels.matrix_rows import FLOAT_DTYPES, GGUF_BLOCKS, MatrixRows, check_alike, empty_bytes
from pyllm_kernels.op import op
from pyllm_kernels.ops.linear_fp8 import linear_fp8
from pyllm_kernels.ops.linear_w4a16 import linear_w4a16
from pyllm_kernels.ops.linear_w8a8 import linear_w8a8, quantised
from pyllm_kernels.ops.linear_w8a16 import linear_w8a16
from pyllm_kernels.quantised_shapes import FP8_SCALE_UNIT
from pyllm_kernels.tensors import (
    Array,
    Floats,
    Tensor,
    dtype_name,
    numpy_dtype,
    product,
    rounded,
    view_as,
    widened,
)

INT8_BLOCKS = ("q4_0", "q4_1")
"""GGUF's formats that int8 weights can be made of, and be kept in."""
_GROUP = 32


class NotFiniteError(ValueError):
    """A row of a matrix has a NaN or an infinity; `row` is its index."""

    def __init__(self, row: int) -> None:
        super().__init__(f"row {row} of the matrix has a NaN or an infinity")
        self.row = row


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A matrix in the form of its backend.

    `format` is the weight's dtype, "int8", "float8_e4m3fn" or one of `GGUF_BLOCKS`; `dtype` is the dtype of inputs and
    outputs. `data` is one of:

    - With `layout`: all memory of the matrix, packed by Rust; floats in their dtype, integers in bytes.
    - With `factors`: elements for Triton. The factors are their scales, then minimums if the format has them: one per
      group of 32 features of "q4_0", "q4_1" and "q8_0", one per row of "int8", one per `scale_features` of a row of
      "float8_e4m3fn".
    - With neither: floats [out_features, in_features]; in the reference's "int8", column 0 is the scale of the row,
      followed by its integers.
    """

    data: Tensor
    format: str
    dtype: str
    layout: _cpu.Linear | None
    factors: tuple[Tensor, ...] = ()
    scale_features: int = 0

    @property
    def nbytes(self) -> int:
        return int(self.data.nbytes) + sum(int(factor.nbytes) for factor in self.factors)

    def moved(self, move: Callable[[Array], Tensor]) -> Self:
        """A copy of a matrix on the host, with `move` applied to its arrays; what Rust has packed stays there."""
        if self.layout is not None:
            return self
        return replace(self, data=move(self.data), factors=tuple(map(move, self.factors)))

    @property
    def out_features(self) -> int:
        return len(self.data) if self.layout is None else self.layout.out_features

    @property
    def fp8_block(self) -> tuple[int, int]:
        """The outputs and features that share a scale, as the argument `block` of `linear_fp8`."""
        return 1, self.scale_features if self.factors[0].shape[1] > 1 else FP8_SCALE_UNIT


def _pack_linear(weight: Tensor) -> PackedLinear:
    name = dtype_name(weight.dtype)
    return PackedLinear(weight, name, name, None)


@op(reference=_pack_linear, triton="pyllm_kernels.gpu.linears.linear_packed")
def pack_linear(weight: Tensor) -> PackedLinear:
    """Pack a matrix [out_features, in_features] for `packed_linear`; the result may share its memory."""
    rows = MatrixRows.of(weight)
    return _pack([rows], rows.format, rows.format, empty_bytes)


def _pack_rows(
    parts: Sequence[MatrixRows], weight_format: str, dtype: str, room: Callable[[int], Tensor] = empty_bytes
) -> PackedLinear:
    del room
    check_alike(parts)
    kinds = {part.format for part in parts}
    if weight_format not in ("int8", *FLOAT_DTYPES) and kinds != {weight_format}:
        raise ValueError(f"{weight_format} cannot be packed from rows of {', '.join(sorted(kinds))}")
    numbers = np.concatenate([part.numbers() for part in parts])
    if len(odd := np.flatnonzero(~np.isfinite(numbers).all(1))):
        raise NotFiniteError(int(odd[0]))
    if weight_format in FLOAT_DTYPES:
        return PackedLinear(numbers.astype(numpy_dtype(dtype)), weight_format, dtype, None)
    if weight_format == "int8":
        in_blocks = len(kinds) == 1 and kinds <= set(INT8_BLOCKS)
        numbers = np.concatenate([_int8(part, in_blocks) for part in parts])
    return PackedLinear(numbers, weight_format, dtype, None)


@op(reference=_pack_rows, triton="pyllm_kernels.gpu.linears.linear_packed")
def pack_rows(
    parts: Sequence[MatrixRows], weight_format: str, dtype: str, room: Callable[[int], Tensor] = empty_bytes
) -> PackedLinear:
    """Pack rows of a file, the parts stacked by rows, for `packed_linear` with x of `dtype`.

    `weight_format` is `dtype`; or one of `GGUF_BLOCKS`, the format of all rows: then each 32 features of x become
    integers with their own scale; or "int8": then a row of the matrix becomes integers from -127 to 127 with one
    float32 scale, its largest magnitude / 127, and a row of x integers from -16,256 to 16,256. int8 from `INT8_BLOCKS`
    stays in 4 bits, with two factors a group that expand them to 8 during the product. `room` returns the memory that
    Rust packs into, uint8 [bytes].

    Raises `NotFiniteError` if a number is not finite, and `ValueError` for rows that cannot be packed in this format.
    """
    return _pack(parts, weight_format, dtype, room)


def _packed_linear(x: Array, packed: PackedLinear, out: Array | None = None) -> Tensor:
    if packed.format in {"q4_0", "q4_1"} and packed.factors:
        scales, minimums = packed.factors
        return linear_w4a16.reference(x, packed.data, scales, minimums, out)
    if packed.format == "q8_0" and packed.factors:
        return linear_w8a16.reference(x, packed.data, packed.factors[0], out)
    if packed.format == "int8" and packed.factors:
        return linear_w8a8.reference(x, packed.data, packed.factors[0], out)
    if packed.format == "float8_e4m3fn":
        return linear_fp8.reference(x, packed.data, packed.factors[0], out, packed.fp8_block)
    if packed.format in FLOAT_DTYPES:
        return product(x, widened(packed.data), out)
    return rounded(_integer_product(widened(x), packed), x, out)


@op(reference=_packed_linear, triton="pyllm_kernels.gpu.linears.linear_packed")
def packed_linear(x: Tensor, packed: PackedLinear, out: Tensor | None = None) -> Tensor:
    """`x @ weight.T`; x [tokens, in_features], contiguous, of the packed dtype -> [tokens, out_features].

    Sums are float32 and rounded once. On a CPU a row's result does not depend on other rows.
    `out`, if given, gets the result and is returned; it may be some columns of a wider tensor.
    """
    layout = packed.layout
    if layout is None:
        return graph.not_captured(packed_linear)(x, packed, out)
    if out is None:
        out = graph.empty((len(x), layout.out_features), x)
    layout.run(x, packed.data, out)
    return out


def _packed_rows(packed: PackedLinear, rows: Array) -> Tensor:
    found = packed.data[rows]
    if packed.format == "int8":
        found = found[:, :1] * found[:, 1:]
    return found.astype(numpy_dtype(packed.dtype))


@op(reference=_packed_rows, triton="pyllm_kernels.gpu.linears.linear_packed")
def packed_rows(packed: PackedLinear, rows: Tensor) -> Tensor:
    """Some rows of the matrix, as numbers of the packed dtype; rows int32 [n], contiguous -> [n, in_features]."""
    layout = packed.layout
    if layout is None:
        return graph.not_captured(packed_rows)(packed, rows)
    out = graph.empty((len(rows), layout.in_features), rows, packed.dtype)
    layout.unpack_rows(packed.data, rows, out)
    return out


def _kept_format(rows: MatrixRows) -> str:
    return rows.format if rows.format in GGUF_BLOCKS or rows.is_int8 else ""


@op(reference=_kept_format, triton="pyllm_kernels.gpu.linears.linear_packed")
def kept_format(rows: MatrixRows) -> str:
    """The format in which `pack_rows` can keep quantised rows without loss, or an empty text.

    On a CPU it is one of `GGUF_BLOCKS`, or "int8" with a scale a row. In Triton it is "q4_0", "q4_1", "q8_0" (also for
    rows of "q5_0" and "iq4_nl", and with a loss for `GRID_FORMATS`), "int8" with a scale a row, or "float8_e4m3fn" with
    a scale for each row, or for a multiple of 64 features.
    """
    return _kept_format(rows)


def _pack(parts: Sequence[MatrixRows], weight_format: str, dtype: str, room: Callable[[int], Tensor]) -> PackedLinear:
    in_features, num_rows = check_alike(parts), sum(map(len, parts))
    kinds = {part.format for part in parts}
    blocks = kinds.pop() if weight_format == "int8" and len(kinds) == 1 and kinds <= set(INT8_BLOCKS) else None
    layout = _cpu.Linear(weight_format, dtype, in_features, num_rows, blocks)
    data = room(layout.packed_bytes)
    row = layout.pack(list(parts), data)
    if row is not None:
        raise NotFiniteError(row)
    return PackedLinear(view_as(data, dtype) if weight_format == dtype else data, weight_format, dtype, layout)


def _integer_product(x: Floats, packed: PackedLinear) -> Floats:
    """The product of quantised rows of x: their integers' sums are exact in float64."""
    if packed.format == "int8":
        x_scales, x_integers = quantised(x, 127 * 128)
        sums = x_integers.astype(np.float64) @ packed.data[:, 1:].astype(np.float64).T
        scales: Floats = packed.data[:, 0]
        return x_scales * scales * widened(sums)
    x_scales, x_integers = quantised(x.reshape(len(x), x.shape[1] // _GROUP, _GROUP))
    numbers = (x_scales.astype(np.float64) * x_integers).reshape(x.shape)
    return widened(numbers @ packed.data.astype(np.float64).T)


def _int8(part: MatrixRows, in_blocks: bool) -> Floats:
    """The scale of each row, then its integers: [rows, 1 + in_features]."""
    if part.is_int8 and part.scales is not None:
        unscaled = replace(part, scales=part.scales._replace(numbers=np.ones((len(part), 1), np.float32)))
        return np.concatenate((part.scales.numbers, unscaled.numbers()), 1)
    return np.concatenate(quantised(_int8_of_blocks(part) if in_blocks else part.numbers()), 1)


def _int8_of_blocks(part: MatrixRows) -> Floats:
    """The numbers of GGUF's 4-bit blocks as 8-bit integers: see `_cpu.Linear`."""
    blocks = part.stored().reshape(len(part), -1, GGUF_BLOCKS[part.format][1])
    scales = _half(blocks[..., :2])
    start, minimums = (4, _half(blocks[..., 2:4])) if part.format == "q4_1" else (2, -8 * scales)
    nibbles = np.concatenate((blocks[..., start:] & 15, blocks[..., start:] >> 4), -1)
    ends = np.concatenate((minimums, 15 * scales + minimums), -1).reshape(len(part), -1)
    row_scales = (np.abs(ends).max(-1) / 127)[:, None, None]
    steps, starts = (np.nan_to_num(np.rint(256 * numbers / row_scales)) for numbers in (scales, minimums))
    expanded: Floats = row_scales * np.floor((steps * nibbles + starts + 128) / 256)
    return expanded.reshape(len(part), -1)


def _half(pairs: Array) -> Floats:
    return widened(np.ascontiguousarray(pairs).view(np.float16))
