"""Products with 8-bit weights and floats."""

from pyllm_kernels import graph
from pyllm_kernels.op import op
from pyllm_kernels.quantised_shapes import w8a16_group_size
from pyllm_kernels.tensors import Array, Tensor, product, rounded, widened


def _linear_w8a16(x: Array, integers: Array, scales: Array, out: Array | None = None) -> Array:
    group_size = w8a16_group_size(x, integers, scales, out)
    weight = widened(scales)[..., None] * integers.reshape(*scales.shape, group_size)
    return product(x, widened(rounded(weight.reshape(integers.shape), x)), out)


@op(reference=_linear_w8a16, triton="pyllm_kernels.gpu.linears.linear_w8a16")
def linear_w8a16(x: Tensor, integers: Tensor, scales: Tensor, out: Tensor | None = None) -> Tensor:
    """`x @ weight.T` with 8-bit weights, each `scale * integer` rounded to x's dtype; x is not quantised.

    - x [tokens, in_features], contiguous, float32, float16 or bfloat16.
    - integers int8 [out_features, in_features].
    - scales float16 [out_features, in_features / group_size]; group_size is a multiple of 32.
    - out, results and tiles as for `linear_w4a16`, with the same limits of tests.

    Raises `ValueError` for shapes, strides and dtypes that do not fit.
    """
    return graph.not_captured(linear_w8a16)(x, integers, scales, out)
