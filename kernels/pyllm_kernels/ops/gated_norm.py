"""Norms of groups of features with a gate."""

import numpy as np

from pyllm_kernels import _cpu, graph
from pyllm_kernels.op import op
from pyllm_kernels.ops.activation import ACTIVATIONS, sigmoid
from pyllm_kernels.tensors import Array, Tensor, rounded, widened


def _gated_norm(
    x: Array, gate: Array, weight: Array, epsilon: float, group_size: int, gate_first: bool, function: str = "silu"
) -> Array:
    factor = (sigmoid if function == "sigmoid" else ACTIVATIONS[function])(widened(gate))
    groups = (widened(x) * factor if gate_first else widened(x)).reshape(len(x), -1, group_size)
    normed = groups / np.sqrt(np.square(groups).mean(-1, keepdims=True) + np.float32(epsilon))
    scaled = (normed * widened(weight).reshape(-1, group_size)).reshape(x.shape)
    return rounded(scaled if gate_first else scaled * factor, x)


@op(reference=_gated_norm, triton="pyllm_kernels.gpu.recurrences.gated_norm")
def gated_norm(
    x: Tensor,
    gate: Tensor,
    weight: Tensor,
    epsilon: float,
    group_size: int,
    gate_first: bool,
    function: str = "silu",
) -> Tensor:
    """Normalise groups of adjacent features by `x / sqrt(mean(x²) + epsilon) * weight`, with a gate; in float32.

    With `gate_first` that of `x * function(gate)` ("silu" in Mamba-2, arXiv 2405.21060); else the gate is a factor of
    the result ("silu" in Qwen3-Next, "sigmoid" in Kimi's linear attention, arXiv 2510.26692). Rounded once.

    x, gate [tokens, features] of one dtype, columns contiguous, tokens any stride; group_size divides the features;
    weight of any float dtype, [features] or, for all groups, [group_size] -> [tokens, features] of x's dtype.
    """
    out = graph.empty(x.shape, x)
    _cpu.ops.gated_norm(x, gate, weight, epsilon, group_size, gate_first, function, out)
    return out
