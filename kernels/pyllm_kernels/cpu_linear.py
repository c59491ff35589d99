"""`x @ weight.T` on a CPU with packed weights, by Rust's kernels. Does not know the computation of a layer.

A row's result does not depend on other rows. This does not hold for float16 weights, which no model needs on a CPU, and
which torch multiplies.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from pyllm_kernels import _cpu, graph
from pyllm_kernels.matrix_rows import GGUF_BLOCKS, MatrixRows, check_alike, empty_bytes, sources
from pyllm_kernels.tensors import dtype_name

_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
INT8_BLOCKS = ("q4_0", "q4_1")
"""GGUF's formats that int8 weights can be made of, and be kept in."""


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
    dtype: torch.dtype
    layout: _cpu.Linear | None
    factors: tuple[Tensor, ...] = ()
    scale_features: int = 0

    def __post_init__(self) -> None:
        layout, data = self.layout, self.data
        if layout is not None and (data.nbytes != layout.packed_bytes or not data.is_cpu or not data.is_contiguous()):
            raise ValueError(
                f"data is {data.nbytes} bytes on {data.device} with strides {data.stride()}: the layout takes "
                f"{layout.packed_bytes} in one piece on the CPU"
            )

    @property
    def nbytes(self) -> int:
        return self.data.nbytes + sum(factor.nbytes for factor in self.factors)

    def to(self, device: torch.device) -> "PackedLinear":
        """A copy on a device."""
        factors = tuple(factor.to(device) for factor in self.factors)
        return replace(self, data=self.data.to(device), factors=factors)

    @property
    def out_features(self) -> int:
        return len(self.data) if self.layout is None else self.layout.out_features


def kept_format(rows: MatrixRows) -> str:
    return rows.format if rows.format in GGUF_BLOCKS or rows.is_int8 else ""


def pack_linear(weight: Tensor) -> PackedLinear:
    return pack_rows([MatrixRows.of(weight)], dtype_name(weight.dtype), weight.dtype)


def pack_rows(
    parts: Sequence[MatrixRows], weight_format: str, dtype: torch.dtype, room: Callable[[int], Tensor] = empty_bytes
) -> PackedLinear:
    in_features, num_rows = check_alike(parts), sum(map(len, parts))
    if dtype not in _DTYPES and weight_format == dtype_name(dtype):
        return PackedLinear(torch.cat([part.numbers() for part in parts]).to(dtype), weight_format, dtype, None)
    kinds = {part.format for part in parts}
    blocks = kinds.pop() if weight_format == "int8" and len(kinds) == 1 and kinds <= set(INT8_BLOCKS) else None
    layout = _cpu.Linear(weight_format, dtype_name(dtype), in_features, num_rows, blocks)
    data = room(layout.packed_bytes)
    row = layout.pack(sources(parts), data.data_ptr())
    if row is not None:
        raise NotFiniteError(row)
    return PackedLinear(data.view(dtype) if weight_format == dtype_name(dtype) else data, weight_format, dtype, layout)


def packed_linear(x: Tensor, packed: PackedLinear, out: Tensor | None = None) -> Tensor:
    if packed.layout is None:
        product = graph.not_captured(F.linear)(x, packed.data)
        return product if out is None else out.copy_(product)
    _check_matrix("x", x)
    tokens, in_features = x.shape
    out_features = packed.layout.out_features
    if in_features != packed.layout.in_features or x.dtype is not packed.dtype:
        raise ValueError(
            f"x is {x.dtype} [{tokens}, {in_features}], but the packed weight takes {packed.dtype} "
            f"[tokens, {packed.layout.in_features}]"
        )
    _check_on_cpu("x", x)
    if out is None:
        out = graph.empty((tokens, out_features), x)
    elif out.shape != (tokens, out_features) or out.dtype is not x.dtype or not out.is_cpu or _stride(out) is None:
        raise ValueError(
            f"out is {out.dtype} {list(out.shape)} on {out.device} with strides {out.stride()}: give {x.dtype} "
            f"[{tokens}, {out_features}] on the CPU, with rows contiguous and apart"
        )
    stride = _stride(out) or out_features
    packed.layout.run(x.data_ptr(), tokens, packed.data.data_ptr(), out.data_ptr(), stride)
    graph.keep(x, packed.data, out)
    return out


def packed_rows(packed: PackedLinear, rows: Tensor) -> Tensor:
    if packed.layout is None:
        return graph.not_captured(F.embedding)(rows, packed.data)
    if rows.ndim != 1:
        raise ValueError(f"rows are {list(rows.shape)}: give a vector")
    num_rows = len(rows)
    if rows.dtype is not torch.int32:
        raise ValueError(f"rows are {rows.dtype}: give int32")
    _check_on_cpu("rows", rows)
    out = graph.empty((num_rows, packed.layout.in_features), rows, dtype_name(packed.dtype))
    packed.layout.unpack_rows(packed.data.data_ptr(), rows.data_ptr(), num_rows, out.data_ptr())
    graph.keep(packed.data, rows)
    return out


def _stride(out: Tensor) -> int | None:
    """Elements from one row to the next; None if rows are not contiguous, or overlap."""
    if out.is_contiguous():
        return out.shape[1]
    apart, within = out.stride()
    return apart if within == 1 and apart >= out.shape[1] else None


def _check_matrix(name: str, tensor: Tensor) -> None:
    if tensor.ndim != 2:
        raise ValueError(f"{name} is {list(tensor.shape)}: give a matrix")


def _check_on_cpu(name: str, tensor: Tensor) -> None:
    """Refuse a tensor that is not contiguous on the CPU."""
    if not tensor.is_cpu or not tensor.is_contiguous():
        raise ValueError(f"{name} is on {tensor.device} with strides {tensor.stride()}: give a contiguous CPU tensor")
