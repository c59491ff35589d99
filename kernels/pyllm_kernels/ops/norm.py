"""Norms, alone and fused with the residual addition."""

import numpy as np

from pyllm_kernels import _cpu, graph
from pyllm_kernels.op import op
from pyllm_kernels.ops.elementwise import add
from pyllm_kernels.tensors import Array, Floats, Tensor, rounded, widened


def _rms_norm(x: Array, weight: Array, epsilon: float, out: Array | None = None) -> Array:
    return rounded(_scaled(widened(x), weight, epsilon), x, out)


@op(reference=_rms_norm, triton="pyllm_kernels.gpu.norm")
def rms_norm(x: Tensor, weight: Tensor, epsilon: float, out: Tensor | None = None) -> Tensor:
    """`x / sqrt(mean(x²) + epsilon) * weight` over the last dimension, in float32 (arXiv 1910.07467).

    x [tokens, hidden] and weight [hidden], float32, float16 or bfloat16 -> [tokens, hidden] of x's dtype. A weight of
    fewer features, a divisor of hidden, is that of each group of as many adjacent features, which is normalised alone.
    `out`, if given, gets the result and is returned; it may be x itself, some columns of a wider tensor.
    """
    return _norm(x, weight, epsilon, None, centred=False, out=out)


def _add_rms_norm(x: Array, residual: Array, weight: Array, epsilon: float, factor: float = 1.0) -> tuple[Array, Array]:
    total = add.reference(x, residual, factor)
    return _rms_norm(total, weight, epsilon), total


@op(reference=_add_rms_norm, triton="pyllm_kernels.gpu.norm")
def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, epsilon: float, factor: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Add x to the residual stream and normalise the sum; return the normalised sum and `add(x, residual, factor)`.

    x, residual [tokens, hidden] of one dtype; the sum is rounded to that dtype before it is normalised, so that the
    norm is that of the stream for the next layer. Both inputs stay unchanged.
    """
    return _add_norm(x, residual, weight, epsilon, factor, None, centred=False)


def _layer_norm(x: Array, weight: Array, epsilon: float, bias: Array | None = None) -> Array:
    wide = widened(x)
    scaled = _scaled(wide - wide.mean(-1, keepdims=True), weight, epsilon)
    return rounded(scaled if bias is None else scaled + widened(bias), x)


@op(reference=_layer_norm, triton="pyllm_kernels.gpu.norm")
def layer_norm(x: Tensor, weight: Tensor, epsilon: float, bias: Tensor | None = None) -> Tensor:
    """`(x - mean) / sqrt(variance + epsilon) * weight + bias` over the last dimension, in float32 (arXiv 1607.06450).

    Shapes and dtypes as for `rms_norm`; the bias is like the weight.
    """
    return _norm(x, weight, epsilon, bias, centred=True)


def _add_layer_norm(
    x: Array, residual: Array, weight: Array, epsilon: float, factor: float = 1.0, bias: Array | None = None
) -> tuple[Array, Array]:
    total = add.reference(x, residual, factor)
    return _layer_norm(total, weight, epsilon, bias), total


@op(reference=_add_layer_norm, triton="pyllm_kernels.gpu.norm")
def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, epsilon: float, factor: float = 1.0, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Like `add_rms_norm`, with `layer_norm`."""
    return _add_norm(x, residual, weight, epsilon, factor, bias, centred=True)


def _norm(
    x: Tensor, weight: Tensor, epsilon: float, bias: Tensor | None, *, centred: bool, out: Tensor | None = None
) -> Tensor:
    out = graph.empty(x.shape, x) if out is None else out
    _cpu.ops.norm(x, weight, epsilon, centred, out, bias)
    return out


def _add_norm(
    x: Tensor, residual: Tensor, weight: Tensor, epsilon: float, factor: float, bias: Tensor | None, *, centred: bool
) -> tuple[Tensor, Tensor]:
    out, total = graph.empty(x.shape, x), graph.empty(x.shape, x)
    _cpu.ops.add_norm(x, residual, factor, weight, epsilon, centred, out, total, bias)
    return out, total


def _scaled(numbers: Floats, weight: Array, epsilon: float) -> Floats:
    groups = numbers.reshape(*numbers.shape[:-1], -1, len(weight))
    inverse_rms = 1 / np.sqrt(np.square(groups).mean(-1, keepdims=True) + np.float32(epsilon))  # [..., groups, 1]
    scaled: Floats = (groups * inverse_rms * widened(weight)).reshape(numbers.shape)
    return scaled
