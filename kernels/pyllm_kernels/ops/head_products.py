"""Products of each head with its own matrix."""

import numpy as np

from pyllm_kernels import graph
from pyllm_kernels.op import op
from pyllm_kernels.ops.packed_linear import PackedLinear
from pyllm_kernels.tensors import Array, Tensor, rounded


def _head_products(x: Array, packed: PackedLinear, keep: bool) -> Array:
    weights = packed.data.astype(np.float64)
    matrices = weights.reshape(x.shape[1], -1, weights.shape[1])  # [heads, out_features, in_features]
    kept, multiplied = np.split(x, (x.shape[2] - weights.shape[1],), axis=-1)
    sums = np.einsum("thi,hoi->tho", multiplied.astype(np.float64), matrices)
    products = rounded(sums.astype(np.float32), x)
    return np.concatenate((kept, products), -1) if keep else products


@op(reference=_head_products, triton="pyllm_kernels.gpu.head_products")
def head_products(x: Tensor, packed: PackedLinear, keep: bool) -> Tensor:
    """Multiply the last numbers of each head by its own matrix, as latent attention does (arXiv 2405.04434).

    x [tokens, heads, first + in_features], heads contiguous, tokens any stride; `packed` are the matrices
    [out_features, in_features] of all heads, stacked, floats of x's dtype, out_features a multiple of 32
    -> [tokens, heads, out_features]. With `keep` the `first` numbers of each head come before the result, unchanged:
    [tokens, heads, first + out_features]. Sums are float32 and rounded once. On a CPU a row's result does not depend
    on other rows; in Triton, except for float32, the number of rows picks one of two tiles, as for `linear_w4a16`.
    """
    layout = packed.layout
    if layout is None:
        return graph.not_captured(head_products)(x, packed, keep)
    tokens, heads, size = x.shape
    kept = size - layout.in_features if keep else 0
    out = graph.empty((tokens, heads, kept + layout.out_features // heads), x)
    layout.run_heads(x, packed.data, out)
    return out
