"""Sums, scales, gates and casts, number by number."""

import numpy as np

from pyllm_kernels import _cpu, graph
from pyllm_kernels.op import op
from pyllm_kernels.ops.activation import ACTIVATIONS, sigmoid
from pyllm_kernels.tensors import Array, Floats, Tensor, rounded, softplus, widened


def _add(x: Array, residual: Array, factor: float = 1.0) -> Array:
    return rounded(widened(x) * np.float32(factor) + widened(residual), x)


@op(reference=_add, triton="pyllm_kernels.gpu.norm")
def add(x: Tensor, residual: Tensor, factor: float = 1.0) -> Tensor:
    """`x * factor + residual` in float32, rounded once to x's dtype; both [tokens, hidden] of one dtype."""
    out = graph.empty(x.shape, x)
    _cpu.ops.add(x, residual, factor, out)
    return out


def _add_bias(x: Array, bias: Array) -> Array:
    x[...] = widened(x) + widened(bias)
    return x


@op(reference=_add_bias, triton="pyllm_kernels.gpu.elementwise")
def add_bias(x: Tensor, bias: Tensor) -> Tensor:
    """Add `bias` [n], of x's dtype or float32, to each row of x [tokens, n] in place; return x."""
    _cpu.ops.add_bias(x, bias)
    return x


def _scale_and_cap(x: Array, factor: float, cap: float | None = None) -> Array:
    scaled = widened(x) * np.float32(factor)
    x[...] = scaled if cap is None else np.float32(cap) * np.tanh(scaled / np.float32(cap))
    return x


@op(reference=_scale_and_cap, triton="pyllm_kernels.gpu.elementwise")
def scale_and_cap(x: Tensor, factor: float, cap: float | None = None) -> Tensor:
    """Multiply x [tokens, n] by a factor in place; with a cap, make each number `cap * tanh(number / cap)`; return x.

    Computes in float32 and rounds once. For logits and embeddings (Gemma 2, arXiv 2408.00118).
    """
    _cpu.ops.scale_and_cap(x, factor, cap)
    return x


def _clamp(x: Array, limit: float) -> Array:
    return np.clip(x, -limit, limit, out=x)


@op(reference=_clamp, triton="pyllm_kernels.gpu.elementwise")
def clamp(x: Tensor, limit: float) -> Tensor:
    """Bring each number of x [tokens, n] into the range from -limit to limit in place; return x.

    For queries, keys and values (MPT, DBRX).
    """
    _cpu.ops.clamp(x, limit)
    return x


def _sigmoid_gate(x: Array, gate: Array) -> Array:
    return _gated(x, sigmoid(widened(gate)))


def _gated(x: Array, factors: Floats) -> Array:
    x[...] = widened(x) * np.repeat(factors, x.shape[1] // factors.shape[1], axis=1)
    return x


@op(reference=_sigmoid_gate, triton="pyllm_kernels.gpu.elementwise")
def sigmoid_gate(x: Tensor, gate: Tensor) -> Tensor:
    """Multiply x [tokens, n] by `sigmoid(gate)` in place; return x.

    The gate is [tokens, n], of x's dtype; or it has fewer numbers, a divisor of n, each for as many adjacent features.
    Computes in float32 and rounds once.
    """
    _cpu.ops.sigmoid_gate(x, gate)
    return x


def _softplus_gate(x: Array, gate: Array) -> Array:
    return _gated(x, softplus(widened(gate)))


@op(reference=_softplus_gate, triton="pyllm_kernels.gpu.elementwise")
def softplus_gate(x: Tensor, gate: Tensor) -> Tensor:
    """Multiply x [tokens, n] by `log(1 + exp(gate))` in place; return x. All else is as for `sigmoid_gate`."""
    _cpu.ops.softplus_gate(x, gate)
    return x


def _silu_gate(x: Array, gate: Array) -> Array:
    x[...] = widened(x) * ACTIVATIONS["silu"](widened(gate))
    return x


@op(reference=_silu_gate, triton="pyllm_kernels.gpu.elementwise")
def silu_gate(x: Tensor, gate: Tensor) -> Tensor:
    """Multiply x [tokens, n] by `gate * sigmoid(gate)` in place; return x.

    The gate is [tokens, n], of x's dtype. Computes in float32 and rounds once. For Mamba-2 without a norm (Falcon-H1).
    """
    _cpu.ops.silu_gate(x, gate)
    return x


def _widen(x: Array) -> Floats:
    return widened(x)


@op(reference=_widen, triton="pyllm_kernels.gpu.elementwise")
def widen(x: Tensor) -> Tensor:
    """The numbers of x [tokens, n] as float32."""
    out = graph.empty(x.shape, x, "float32")
    _cpu.ops.widen(x, out)
    return out
