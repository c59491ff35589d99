"""The activation of a feed-forward layer."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pyllm_kernels import _cpu, graph
from pyllm_kernels.op import op
from pyllm_kernels.tensors import Array, Floats, Tensor, rounded, widened

_error_function = np.vectorize(math.erf, otypes=[np.float64])


@dataclass(frozen=True, slots=True)
class Xielu:
    """`positive * x² + beta * x` of x above 0, else `negative * (exp(min(x, epsilon)) - 1 - x) + beta * x`.

    From arXiv 2411.13010 (Apertus), where a layer learns both factors.
    """

    positive: float
    negative: float
    beta: float
    epsilon: float


@dataclass(frozen=True, slots=True)
class LimitedSwiglu:
    """`silu(gate) * up`, the first factor at most `limit`, and the second from `-limit` to `limit` (Step 3.5)."""

    limit: float


def sigmoid(numbers: Floats) -> Floats:
    """`1 / (1 + exp(-x))`, without overflow."""
    exponentials = np.exp(-np.abs(numbers))
    positive = 1 / (1 + exponentials)
    return np.where(numbers >= 0, positive, exponentials * positive)


def _silu(numbers: Floats) -> Floats:
    return numbers * sigmoid(numbers)


def _gelu(numbers: Floats) -> Floats:
    wide = numbers.astype(np.float64)
    activated: Floats = (wide * 0.5 * (1 + _error_function(wide / math.sqrt(2)))).astype(np.float32)
    return activated


def _gelu_tanh(numbers: Floats) -> Floats:
    inner = np.float32(math.sqrt(2 / math.pi)) * (numbers + np.float32(0.044715) * numbers**3)
    activated: Floats = np.float32(0.5) * numbers * (1 + np.tanh(inner))
    return activated


def _relu(numbers: Floats) -> Floats:
    return np.maximum(numbers, np.float32(0))


def _relu2(numbers: Floats) -> Floats:
    return np.square(_relu(numbers))


ACTIVATIONS: dict[str, Callable[[Floats], Floats]] = {
    "silu": _silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": _relu,
    "relu2": _relu2,
}
"""The functions by their names, in numpy."""


def _xielu(numbers: Floats, kind: Xielu) -> Floats:
    positive, negative, beta, epsilon = map(np.float32, (kind.positive, kind.negative, kind.beta, kind.epsilon))
    below = (np.expm1(np.minimum(numbers, epsilon)) - numbers) * negative
    activated: Floats = np.where(numbers > 0, positive * numbers * numbers, below) + beta * numbers
    return activated


def limited_swiglu(gate: Floats, up: Floats, limit: float) -> Floats:
    """`LimitedSwiglu` in numpy."""
    return np.minimum(_silu(gate), np.float32(limit)) * np.clip(up, -limit, limit)


def _activation(x: Array, kind: str | Xielu | LimitedSwiglu, gated: bool = True, up: Array | None = None) -> Array:
    def activated(numbers: Floats, kind: str | Xielu) -> Floats:
        return _xielu(numbers, kind) if isinstance(kind, Xielu) else ACTIVATIONS[kind](numbers)

    if not gated:
        assert not isinstance(kind, LimitedSwiglu), "it has a gate"
        return rounded(activated(widened(x), kind), x)
    gate, factors = np.split(widened(x), 2, axis=-1) if up is None else (widened(x), widened(up))
    if isinstance(kind, LimitedSwiglu):
        return rounded(limited_swiglu(gate, factors, kind.limit), x)
    return rounded(activated(gate, kind) * factors, x)


@op(reference=_activation, triton="pyllm_kernels.gpu.elementwise")
def activation(x: Tensor, kind: str | Xielu | LimitedSwiglu, gated: bool = True, up: Tensor | None = None) -> Tensor:
    """`act(gate) * up` in float32 (arXiv 2002.05202); x [tokens, 2n] is the gate, then up -> [tokens, n] of x's dtype.

    The kind is "silu", "gelu" (by the error function), "gelu_tanh" (arXiv 1606.08415), "relu", "relu2" (its square,
    arXiv 2109.08668), an `Xielu` or a `LimitedSwiglu`, which is always gated. Not gated: `act(x)`, [tokens, n] ->
    [tokens, n]. With `up` [tokens, n], tokens any stride, x [tokens, n] is the gate alone.
    """
    tokens, width = x.shape
    out = graph.empty((tokens, width // 2 if gated and up is None else width), x)
    _cpu.ops.activation(x, kind, gated, up, out)
    return out
