"""Products of 8-bit integers."""

import numpy as np

from pyllm_kernels import graph
from pyllm_kernels.op import op
from pyllm_kernels.quantised_shapes import check_w8a8
from pyllm_kernels.tensors import Array, Floats, Tensor, rounded, widened


def _linear_w8a8(x: Array, integers: Array, scales: Array, out: Array | None = None) -> Array:
    check_w8a8(x, integers, scales, out)
    x_scales, x_integers = quantised(widened(x))
    # Every sum of these integers is exact in float64.
    sums = x_integers.astype(np.float64) @ integers.astype(np.float64).T
    return rounded((x_scales * scales) * widened(sums), x, out)


@op(reference=_linear_w8a8, triton="pyllm_kernels.gpu.linears.linear_w8a8")
def linear_w8a8(x: Tensor, integers: Tensor, scales: Tensor, out: Tensor | None = None) -> Tensor:
    """`x @ weight.T` with int8 weights, and x in int8, too (arXiv 2211.10438): `(x_scale * scale) * sum`.

    A row of x becomes integers from -127 to 127, halves to even, with one scale: its largest magnitude / 127. Sums of
    products are int32, and exact. A row of x with a NaN or an infinity gives NaNs.

    - x [tokens, in_features], contiguous, float32, float16 or bfloat16; up to 132,104 features.
    - integers int8 [out_features, in_features] and scales float32 [out_features]: the weight is scale * integer.
    - out as for `linear_w4a16`.

    Returns [tokens, out_features] of x's dtype. A row's result does not depend on other rows.

    Raises `ValueError` for shapes, strides and dtypes that do not fit.
    """
    return graph.not_captured(linear_w8a8)(x, integers, scales, out)


def quantised(groups: Floats, steps: int = 127) -> tuple[Floats, Floats]:
    """The scale of each group [..., features] and its integers, up to `steps` in magnitude, halves to even."""
    largest = np.abs(groups).max(-1, keepdims=True)
    is_tiny = largest < 2.0**-100
    scales = np.where(np.isfinite(largest), np.where(is_tiny, 0, largest / steps), np.nan)
    return scales, np.rint(groups * np.where(is_tiny, 0, steps / largest))
