"""Products with 4-bit weights."""

import numpy as np

from pyllm_kernels import graph
from pyllm_kernels.op import op
from pyllm_kernels.quantised_shapes import w4a16_group_size
from pyllm_kernels.tensors import Array, Tensor, product, rounded, widened

_BYTES_OF_A_GROUP = 16


def _linear_w4a16(x: Array, integers: Array, scales: Array, minimums: Array, out: Array | None = None) -> Array:
    group_size = w4a16_group_size(x, integers, scales, minimums, out)
    halves = integers.reshape(len(integers), -1, _BYTES_OF_A_GROUP)  # [out_features, groups of 32, bytes]
    grouped = np.concatenate((halves & 15, halves >> 4), -1).reshape(*scales.shape, group_size)
    weight = widened(scales)[..., None] * grouped + widened(minimums)[..., None]
    return product(x, widened(rounded(weight.reshape(len(integers), -1), x)), out)


@op(reference=_linear_w4a16, triton="pyllm_kernels.gpu.linears.linear_w4a16")
def linear_w4a16(x: Tensor, integers: Tensor, scales: Tensor, minimums: Tensor, out: Tensor | None = None) -> Tensor:
    """`x @ weight.T` with 4-bit weights, each `scale * integer + minimum` rounded to x's dtype (arXiv 2306.00978).

    - x [tokens, in_features], contiguous, float32, float16 or bfloat16.
    - integers uint8 [out_features, in_features / 2]: in a row, 16 bytes hold 32 features. Byte i of the 16 has feature
      i in its low half and feature i + 16 in its high half, so that the halves need no interleaving.
      This is the order of GGUF's q4_0 and q4_1.
    - scales and minimums float16 [out_features, in_features / group_size]; group_size is a multiple of 32.
    - out [tokens, out_features] of x's dtype: gets the result and is returned; may be some columns of a wider tensor.

    Returns [tokens, out_features] of x's dtype. Sums are float32 and rounded once. In Triton, except for float32, the
    number of rows picks one of two tiles. Both tiles add up features in the same steps. That this makes rows bitwise
    equal across the two tiles has not been tested on a GPU.

    Raises `ValueError` for shapes, strides and dtypes that do not fit.
    """
    return graph.not_captured(linear_w4a16)(x, integers, scales, minimums, out)
