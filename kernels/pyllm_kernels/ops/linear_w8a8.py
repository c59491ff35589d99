"""Products of 8-bit integers."""

from pyllm_kernels import reference
from pyllm_kernels.op import op
from pyllm_kernels.tensors import Tensor


@op(reference=reference.linear_w8a8, triton="pyllm_kernels.gpu.linear_w8a8")
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
    return reference.linear_w8a8(x, integers, scales, out)
