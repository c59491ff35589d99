"""Causal convolutions of each channel along its sequence, whose state is the last inputs."""

import numpy as np

from pyllm_kernels import _cpu, graph
from pyllm_kernels.metadata import StateRows
from pyllm_kernels.op import op
from pyllm_kernels.ops.activation import ACTIVATIONS
from pyllm_kernels.state_rows import each_row
from pyllm_kernels.tensors import Array, Floats, Tensor, rounded, widened


def _causal_convolution(x: Array, weight: Array, bias: Array | None, rows: StateRows, states: Array) -> Array:
    return rounded(ACTIVATIONS["silu"](_convolved(widened(x), weight, bias, rows, states)), x)


@op(reference=_causal_convolution, triton="pyllm_kernels.gpu.recurrences.causal_convolution")
def causal_convolution(x: Tensor, weight: Tensor, bias: Tensor | None, rows: StateRows, states: Tensor) -> Tensor:
    """The sigmoid linear unit of `bias + sum_k weight[:, k] * x[t - width + 1 + k]` (arXiv 2312.00752), in float32.

    - x [tokens, channels] -> out of its shape and dtype; columns contiguous, tokens any stride.
    - weight float32 [channels, width], contiguous, for a width from 2 to 8; bias float32 [channels] or None.
    - states float32 [num_states, width - 1, channels]: the last inputs, the oldest first. Destinations are overwritten.

    A result depends neither on how a sequence is cut into rows nor on other rows.

    Raises:
        IndexError: a source or a destination is no state, or rows do not own all tokens; then nothing is written.
    """
    out = graph.empty(x.shape, x)
    _cpu.ops.causal_convolution(x, weight, bias, rows, states, out)
    return out


def _gated_convolution(x: Array, weight: Array, bias: Array | None, rows: StateRows, states: Array) -> Array:
    before, behind, numbers = np.split(widened(x), 3, axis=-1)
    return rounded(behind * _convolved(before * numbers, weight, bias, rows, states), x)


@op(reference=_gated_convolution, triton="pyllm_kernels.gpu.recurrences.causal_convolution")
def gated_convolution(x: Tensor, weight: Tensor, bias: Tensor | None, rows: StateRows, states: Tensor) -> Tensor:
    """The convolution of LFM2 with two gates (arXiv 2511.23404): `c * (bias + convolution(b * h))`, rounded once.

    x [tokens, 3 * channels] is b, c and h side by side -> [tokens, channels] of its dtype. The state is the last
    `b * h`; all else is as for `causal_convolution`.
    """
    out = graph.empty((x.shape[0], weight.shape[0]), x)
    _cpu.ops.gated_convolution(x, weight, bias, rows, states, out)
    return out


def _convolved(inputs: Floats, weight: Array, bias: Array | None, rows: StateRows, states: Array) -> Floats:
    out = np.empty_like(inputs)
    channels, width = weight.shape
    for tokens, state in each_row(rows, states):
        extended = np.concatenate((state, inputs[tokens]))  # [width - 1 + the row's tokens, channels]
        out[tokens] = np.zeros(channels, np.float32) if bias is None else bias
        for tap in range(width):
            out[tokens] += extended[tap : len(extended) - width + 1 + tap] * weight[:, tap]
        state[...] = extended[1 - width :]
    return out
