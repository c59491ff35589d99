"""The activation of a feed-forward layer."""

import math
from collections.abc import Callable

import numpy as np

from pyllm_kernels import _cpu, graph
from pyllm_kernels.op import op
from pyllm_kernels.tensors import Array, Floats, Tensor, rounded, widened

_error_function = np.vectorize(math.erf, otypes=[np.float64])


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


ACTIVATIONS: dict[str, Callable[[Floats], Floats]] = {"silu": _silu, "gelu": _gelu, "gelu_tanh": _gelu_tanh}
"""The functions by their names, in numpy."""


def _activation(x: Array, kind: str, gated: bool = True) -> Array:
    if not gated:
        return rounded(ACTIVATIONS[kind](widened(x)), x)
    gate, up = np.split(widened(x), 2, axis=-1)
    return rounded(ACTIVATIONS[kind](gate) * up, x)


@op(reference=_activation, triton="pyllm_kernels.gpu.elementwise")
def activation(x: Tensor, kind: str, gated: bool = True) -> Tensor:
    """`act(gate) * up` in float32 (arXiv 2002.05202); x [tokens, 2n] is the gate, then up -> [tokens, n] of x's dtype.

    The kind is "silu", "gelu" (by the error function) or "gelu_tanh" (arXiv 1606.08415). Not gated: `act(x)`,
    [tokens, n] -> [tokens, n].
    """
    tokens, width = x.shape
    out = graph.empty((tokens, width // 2 if gated else width), x)
    _cpu.ops.activation(x, kind, gated, out)
    return out
