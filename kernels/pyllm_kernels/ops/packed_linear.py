"""Products with packed matrices, and their rows."""

from collections.abc import Callable, Sequence
from typing import Any

from pyllm_kernels import cpu_linear, reference
from pyllm_kernels.cpu_linear import PackedLinear
from pyllm_kernels.matrix_rows import MatrixRows, empty_bytes
from pyllm_kernels.op import op
from pyllm_kernels.tensors import Tensor


@op(reference=reference.pack_linear, triton="pyllm_kernels.reference")
def pack_linear(weight: Tensor) -> PackedLinear:
    """Pack a matrix [out_features, in_features] for `packed_linear`; the result may share its memory."""
    return cpu_linear.pack_linear(weight)


@op(reference=reference.pack_rows, triton="pyllm_kernels.gpu.linear_packed")
def pack_rows(
    parts: Sequence[MatrixRows], weight_format: str, dtype: Any, room: Callable[[int], Tensor] = empty_bytes
) -> PackedLinear:
    """Pack rows of a file, the parts stacked by rows, for `packed_linear` with x of `dtype`.

    `weight_format` is the name of `dtype`; or one of `GGUF_BLOCKS`, the format of all rows: then each 32 features of x
    become integers with their own scale; or "int8": then a row of the matrix becomes integers from -127 to 127 with one
    float32 scale, its largest magnitude / 127, and a row of x integers from -16,256 to 16,256. int8 from `INT8_BLOCKS`
    stays in 4 bits, with two factors a group that expand them to 8 during the product. `room` returns the memory that
    Rust packs into, uint8 [bytes].

    Raises `NotFiniteError` if a number is not finite, and `ValueError` for rows that cannot be packed in this format.
    """
    return cpu_linear.pack_rows(parts, weight_format, dtype, room)


@op(reference=reference.packed_linear, triton="pyllm_kernels.gpu.linear_packed")
def packed_linear(x: Tensor, packed: PackedLinear, out: Tensor | None = None) -> Tensor:
    """`x @ weight.T`; x [tokens, in_features], contiguous, of the packed dtype -> [tokens, out_features].

    Sums are float32 and rounded once. On a CPU, except for float16, a row's result does not depend on other rows.
    `out`, if given, gets the result and is returned; it may be some columns of a wider tensor.
    """
    return cpu_linear.packed_linear(x, packed, out)


@op(reference=reference.packed_rows, triton="pyllm_kernels.gpu.linear_packed")
def packed_rows(packed: PackedLinear, rows: Tensor) -> Tensor:
    """Some rows of the matrix, as numbers of the packed dtype; rows int32 [n], contiguous -> [n, in_features]."""
    return cpu_linear.packed_rows(packed, rows)


@op(reference=cpu_linear.kept_format, triton="pyllm_kernels.gpu.linear_packed")
def kept_format(rows: MatrixRows) -> str:
    """The format in which `pack_rows` can keep quantised rows without loss, or an empty text.

    On a CPU it is one of `GGUF_BLOCKS`, or "int8" with a scale a row. In Triton it is "q4_0", "q4_1", "q8_0" (also for
    rows of "q5_0" and "iq4_nl"), "int8" with a scale a row, or "float8_e4m3fn" with a scale for each row, or for a
    multiple of 64 features.
    """
    return cpu_linear.kept_format(rows)
