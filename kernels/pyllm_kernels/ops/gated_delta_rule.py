"""The gated delta rule of linear attention, whose state is a matrix from keys to values."""

import numpy as np

from pyllm_kernels import _cpu, graph
from pyllm_kernels.metadata import StateRows
from pyllm_kernels.op import op
from pyllm_kernels.ops.activation import sigmoid
from pyllm_kernels.state_rows import each_row
from pyllm_kernels.tensors import Array, Floats, Tensor, rounded, softplus, widened

_EPSILON = np.float32(1e-6)


def _gated_delta_rule(
    qkv: Array,
    decay: Array,
    beta: Array,
    decay_scale: Array,
    decay_bias: Array,
    rows: StateRows,
    states: Array,
    num_key_heads: int,
    is_tiled: bool = False,
    greatest_share: float = 1.0,
    strongest_decay: float | None = None,
) -> Array:
    _, value_heads, key_dim, value_dim = states.shape
    tokens, width = len(qkv), num_key_heads * key_dim
    query, key, value = np.split(widened(qkv), (width, 2 * width), axis=-1)
    of_value_head = np.arange(value_heads)
    key_heads = of_value_head % num_key_heads if is_tiled else of_value_head // (value_heads // num_key_heads)
    query, key = (_normalised(heads.reshape(tokens, num_key_heads, key_dim))[:, key_heads] for heads in (query, key))
    query *= np.float32(key_dim**-0.5)
    value = value.reshape(tokens, value_heads, value_dim)
    steps = (widened(decay) + decay_bias).reshape(tokens, value_heads, -1)
    rates = np.exp(decay_scale)[:, None]
    if strongest_decay is None:
        factors = np.exp(-rates * softplus(steps))  # [tokens, value_heads, key_dim or 1]
    else:
        factors = np.exp(np.float32(strongest_decay) * sigmoid(rates * steps))
    shares = sigmoid(widened(beta)) * np.float32(greatest_share)
    out = np.empty_like(value)
    for row, state in each_row(rows, states):
        for token in range(row.start, row.stop):
            state[...] *= factors[token][..., None]
            known = np.einsum("hk,hkv->hv", key[token], state)
            learnt = (value[token] - known) * shares[token][:, None]
            state[...] += key[token][:, :, None] * learnt[:, None]
            out[token] = np.einsum("hk,hkv->hv", query[token], state)
    return rounded(out.reshape(tokens, -1), qkv)


@op(reference=_gated_delta_rule, triton="pyllm_kernels.gpu.recurrences.gated_delta_rule")
def gated_delta_rule(
    qkv: Tensor,
    decay: Tensor,
    beta: Tensor,
    decay_scale: Tensor,
    decay_bias: Tensor,
    rows: StateRows,
    states: Tensor,
    num_key_heads: int,
    is_tiled: bool = False,
    greatest_share: float = 1.0,
    strongest_decay: float | None = None,
) -> Tensor:
    """The gated delta rule (arXiv 2412.06464), one token after the other, in float32 and rounded once.

    Value head h has the query and key of head `h // (value_heads // num_key_heads)`, or if the heads are tiled, as in
    llama.cpp's files of Qwen 3.5, of `h % num_key_heads`, normalised to a length of 1 (by
    `x / sqrt(sum(x²) + 1e-6)`); queries are then scaled by `key_dim ** -0.5`. With
    `g = exp(-exp(decay_scale) * softplus(decay + decay_bias))`, a token changes its head's state S to
    `g * S + k (v - (g * S)^T k)^T * sigmoid(beta) * greatest_share`; its output is `S^T q` after that. A
    `greatest_share` of 2 allows negative eigenvalues (arXiv 2411.12537). With a `strongest_decay`, a negative number,
    g is `exp(strongest_decay * sigmoid(exp(decay_scale) * (decay + decay_bias)))` (Ling 3).

    - qkv [tokens, 2 * num_key_heads * key_dim + value_heads * value_dim]: all queries, all keys, all values.
    - decay, beta [tokens, value_heads] of qkv's dtype; decay_scale, decay_bias float32 [value_heads], contiguous. With
      decay [tokens, value_heads * key_dim], and decay_bias as wide, g is a factor for each of a state's rows: Kimi's
      delta attention (arXiv 2510.26692).
    - states float32 [num_states, value_heads, key_dim, value_dim]. Destinations are overwritten.
    - out [tokens, value_heads * value_dim] of qkv's dtype.

    Matrices of tokens have contiguous columns, and any stride. A result depends neither on how a sequence is cut into
    rows nor on other rows.

    Raises:
        IndexError: a source or a destination is no state, or rows do not own all tokens; then nothing is written.
    """
    _, value_heads, _, value_dim = states.shape
    out = graph.empty((qkv.shape[0], value_heads * value_dim), qkv)
    tensors = qkv, decay, beta, decay_scale, decay_bias, rows, states
    _cpu.ops.gated_delta_rule(*tensors, num_key_heads, is_tiled, greatest_share, strongest_decay, out)
    return out


def _normalised(heads: Floats) -> Floats:
    normalised: Floats = heads / np.sqrt(np.square(heads).sum(-1, keepdims=True) + _EPSILON)
    return normalised
