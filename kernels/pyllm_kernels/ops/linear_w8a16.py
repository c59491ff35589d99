"""Products with 8-bit weights and floats."""

from pyllm_kernels import reference
from pyllm_kernels.op import op
from pyllm_kernels.tensors import Tensor


@op(reference=reference.linear_w8a16, triton="pyllm_kernels.gpu.linear_w8a16")
def linear_w8a16(x: Tensor, integers: Tensor, scales: Tensor, out: Tensor | None = None) -> Tensor:
    """`x @ weight.T` with 8-bit weights, each `scale * integer` rounded to x's dtype; x is not quantised.

    - x [tokens, in_features], contiguous, float32, float16 or bfloat16.
    - integers int8 [out_features, in_features].
    - scales float16 [out_features, in_features / group_size]; group_size is a multiple of 32.
    - out, results and tiles as for `linear_w4a16`, with the same limits of tests.

    Raises `ValueError` for shapes, strides and dtypes that do not fit.
    """
    return reference.linear_w8a16(x, integers, scales, out)
