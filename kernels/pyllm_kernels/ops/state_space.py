"""Recurrences of state spaces, Mamba's and Mamba-2's: states that forget by a factor and add a token's input."""

import numpy as np

from pyllm_kernels import _cpu, graph
from pyllm_kernels.metadata import StateRows
from pyllm_kernels.op import op
from pyllm_kernels.state_rows import each_row
from pyllm_kernels.tensors import Array, Tensor, rounded, softplus, widened


def _state_space(
    x: Array,
    b: Array,
    c: Array,
    step: Array,
    step_bias: Array,
    decay_log: Array,
    skip: Array,
    rows: StateRows,
    states: Array,
    step_limits: tuple[float, float],
) -> Array:
    _, heads, head_dim, state_size = states.shape
    tokens = len(x)
    b, c = (
        np.repeat(groups, heads // groups.shape[1], axis=1)  # [tokens, heads, state_size]
        for groups in (widened(b).reshape(tokens, -1, state_size), widened(c).reshape(tokens, -1, state_size))
    )
    least, most = step_limits
    steps = np.clip(softplus(widened(step) + step_bias), least, most)[..., None]
    decays = np.exp(-np.exp(decay_log)[:, None] * steps)  # [tokens, heads, 1]
    inputs = widened(x).reshape(tokens, heads, head_dim)
    out = inputs * skip[:, None]
    for row, state in each_row(rows, states):
        for token in range(row.start, row.stop):
            learnt = (inputs[token] * steps[token])[..., None] * b[token][:, None]
            state[...] = state * decays[token][..., None] + learnt
            out[token] += np.einsum("hpn,hn->hp", state, c[token])
    return rounded(out.reshape(tokens, -1), x)


@op(reference=_state_space, triton="pyllm_kernels.gpu.recurrences.state_space")
def state_space(
    x: Tensor,
    b: Tensor,
    c: Tensor,
    step: Tensor,
    step_bias: Tensor,
    decay_log: Tensor,
    skip: Tensor,
    rows: StateRows,
    states: Tensor,
    step_limits: tuple[float, float],
) -> Tensor:
    """The recurrence of Mamba-2 (arXiv 2405.21060), one token after the other, in float32 and rounded once.

    With `dt = softplus(step + step_bias)` clamped to the limits, a token changes its head's state S to
    `S * exp(-exp(decay_log) * dt) + dt * x b^T`; its output is `S c + skip * x` after that. Head h has the b and c of
    group `h // (heads // groups)`.

    - x [tokens, heads * head_dim]; b, c [tokens, groups * state_size], step [tokens, heads] of x's dtype.
    - step_bias, decay_log, skip float32 [heads], contiguous; step_limits: the least dt and the greatest.
    - states float32 [num_states, heads, head_dim, state_size]. Destinations are overwritten.
    - out of x's shape and dtype.

    Matrices of tokens have contiguous columns, and any stride. A result depends neither on how a sequence is cut into
    rows nor on other rows.

    Raises:
        IndexError: a source or a destination is no state, or rows do not own all tokens; then nothing is written.
    """
    out = graph.empty(x.shape, x)
    _cpu.ops.state_space(x, b, c, step, step_bias, decay_log, skip, rows, states, step_limits, out)
    return out


def _selective_scan(
    x: Array,
    step: Array,
    b: Array,
    c: Array,
    step_bias: Array,
    decay_log: Array,
    skip: Array,
    rows: StateRows,
    states: Array,
) -> Array:
    inputs, b, c = widened(x), widened(b), widened(c)
    steps, rates = softplus(widened(step) + step_bias), -np.exp(decay_log)
    out = inputs * skip
    for row, state in each_row(rows, states):
        for token in range(row.start, row.stop):
            learnt = (inputs[token] * steps[token])[:, None] * b[token]
            state[...] = state * np.exp(rates * steps[token][:, None]) + learnt
            out[token] += state @ c[token]
    return rounded(out, x)


@op(reference=_selective_scan, triton="pyllm_kernels.gpu.recurrences.state_space")
def selective_scan(
    x: Tensor,
    step: Tensor,
    b: Tensor,
    c: Tensor,
    step_bias: Tensor,
    decay_log: Tensor,
    skip: Tensor,
    rows: StateRows,
    states: Tensor,
) -> Tensor:
    """The selective scan of Mamba (arXiv 2312.00752), one token after the other, in float32 and rounded once.

    With `dt = softplus(step + step_bias)`, a token changes its channel's state s to
    `s * exp(-exp(decay_log) * dt) + dt * x * b`; its output is `s c + skip * x` after that.

    - x, step [tokens, channels]; b, c [tokens, state_size] of one dtype.
    - step_bias, skip float32 [channels], decay_log float32 [channels, state_size], contiguous.
    - states float32 [num_states, channels, state_size]. Destinations are overwritten.

    All else is as for `state_space`.
    """
    out = graph.empty(x.shape, x)
    _cpu.ops.selective_scan(x, step, b, c, step_bias, decay_log, skip, rows, states, out)
    return out
