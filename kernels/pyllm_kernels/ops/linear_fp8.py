"""Products with fp8 weights."""

import numpy as np

from pyllm_kernels import graph
from pyllm_kernels.op import op
from pyllm_kernels.quantised_shapes import fp8_scale_block
from pyllm_kernels.tensors import Array, Tensor, product, widened


def _linear_fp8(
    x: Array, weight: Array, scales: Array, out: Array | None = None, block: tuple[int, int] = (128, 128)
) -> Array:
    block_out, block_in = fp8_scale_block(x, weight, scales, out, block)
    of_rows = np.repeat(scales, block_out, 0)[: weight.shape[0]]
    of_weights = np.repeat(of_rows, block_in, 1)[:, : weight.shape[1]]
    return product(x, widened(weight) * of_weights, out)


@op(reference=_linear_fp8, triton="pyllm_kernels.gpu.linears.linear_fp8")
def linear_fp8(
    x: Tensor, weight: Tensor, scales: Tensor, out: Tensor | None = None, block: tuple[int, int] = (128, 128)
) -> Tensor:
    """`x @ weight.T` with fp8 (e4m3) weights and scales (arXiv 2209.05433; blocks as in arXiv 2412.19437).

    - x [tokens, in_features], contiguous, float32, float16 or bfloat16.
    - weight float8_e4m3fn [out_features, in_features].
    - scales float32 [rows, columns], the factors of the weights. There is 1 row for all outputs, one for each output,
      or one for each block[0] outputs; 1 column for all features, or one for each block[1].
    - out as for `linear_w4a16`.
    - block: outputs, and features in a multiple of 64. The last block of a side may be smaller.

    Returns [tokens, out_features] of x's dtype. Each weight is exact in x's dtype; sums and scales are float32, rounded
    once. Triton's tiles are as for `linear_w4a16`, with the same limits of tests. x stays in its dtype: products of fp8
    with fp8 need Ada or Hopper, while this runs on each card that Triton supports.

    Raises `ValueError` for shapes, strides and dtypes that do not fit.
    """
    return graph.not_captured(linear_fp8)(x, weight, scales, out, block)
