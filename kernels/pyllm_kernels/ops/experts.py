"""A mixture of experts, and its parts: the router's rule, the activation, and the matrices of this rank's experts."""

from dataclasses import dataclass, replace

import numpy as np

from pyllm_kernels import _cpu, graph
from pyllm_kernels.op import op
from pyllm_kernels.ops.activation import ACTIVATIONS, sigmoid
from pyllm_kernels.ops.packed_linear import PackedLinear, packed_linear
from pyllm_kernels.tensors import Array, Floats, Tensor, rounded, softmax, widened


@dataclass(frozen=True, slots=True)
class Router:
    """The router's rule: the weights are a softmax over all experts, and each token keeps the `active` largest.

    With `normalised` the kept weights add up to 1. `first` and `count` are the range of this rank's experts.
    """

    num_experts: int
    active: int
    normalised: bool
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class ClampedSwiglu:
    """`(up + 1) * gate * sigmoid(alpha * gate)`; gate is at most `limit`, up from `-limit` to `limit`."""

    limit: float
    alpha: float


@dataclass(frozen=True, slots=True)
class ExpertMatrices:
    """The matrices of this rank's experts, each kind packed as one matrix with the experts stacked by rows.

    `gate` and `up` are [count * size, hidden], `down` is [count * hidden, size]; sizes are multiples of 32. Biases are
    [count, outputs], of the dtype of inputs; gate and up both have one or neither has. `down_bias` is None if another
    rank adds it.
    """

    gate: PackedLinear
    up: PackedLinear
    down: PackedLinear
    gate_bias: Tensor | None = None
    up_bias: Tensor | None = None
    down_bias: Tensor | None = None


def _experts(x: Array, logits: Array, router: Router, kind: str | ClampedSwiglu, matrices: ExpertMatrices) -> Array:
    scores = widened(logits)
    order = np.where(np.isnan(scores), -np.inf, -scores)
    chosen = np.argsort(order, axis=-1, kind="stable")[:, : router.active]
    weights = np.take_along_axis(softmax(scores), chosen, -1)
    if router.normalised:
        weights = weights / weights.sum(-1, keepdims=True)
    total = np.zeros(x.shape, np.float32)
    for index in range(router.count):
        tokens, places = np.nonzero(chosen == router.first + index)
        if len(tokens):
            rows = x[tokens]
            gate = _outputs(rows, matrices.gate, matrices.gate_bias, index, router)
            up = _outputs(rows, matrices.up, matrices.up_bias, index, router)
            inner = rounded(_combine(gate, up, kind), x)
            result = _outputs(inner, matrices.down, matrices.down_bias, index, router)
            total[tokens] += weights[tokens, places][:, None] * result
    return rounded(total, x)


@op(reference=_experts, triton="pyllm_kernels.gpu.grouped_experts")
def experts(x: Tensor, logits: Tensor, router: Router, kind: str | ClampedSwiglu, matrices: ExpertMatrices) -> Tensor:
    """Mixture of experts (arXiv 1701.06538): the sum of `weight * expert(x)` over the experts chosen for each token.

    x [tokens, hidden] and the router's logits [tokens, experts], of one dtype -> [tokens, hidden]. An expert is
    `down(act(gate(x)) * up(x))`, with activations as in `activation`, or has a clamped gate; biases are added in
    float32. Of equal scores the first experts are chosen. Results are added in float32, in the order of the experts;
    experts of other ranks add nothing. On a CPU a token's result does not depend on other tokens. In Triton, except for
    float32, the number of tokens picks one of two tiles, as for `linear_w4a16`; `batch_invariant` uses one tile, and
    then a token's result does not depend on other tokens.

    Raises `ValueError` for shapes, strides and dtypes that do not fit.
    """
    if any(packed.layout is None for packed in (matrices.gate, matrices.up, matrices.down)):
        return graph.not_captured(experts)(x, logits, router, kind, matrices)
    out = graph.empty(x.shape, x)
    _cpu.ops.experts(x, logits, router, kind, matrices, out)
    return out


def _outputs(x: Array, packed: PackedLinear, bias: Array | None, index: int, router: Router) -> Floats:
    """The product of some rows with the matrix of an expert, and its bias."""
    size = packed.out_features // router.count
    own = slice(index * size, (index + 1) * size)
    matrix = replace(packed, data=packed.data[own], factors=tuple(factor[own] for factor in packed.factors))
    product = widened(packed_linear.reference(x, matrix))
    return product if bias is None else product + widened(bias[index])


def _combine(gate: Floats, up: Floats, kind: str | ClampedSwiglu) -> Floats:
    if not isinstance(kind, ClampedSwiglu):
        return ACTIVATIONS[kind](gate) * up
    gate, up = np.minimum(gate, np.float32(kind.limit)), np.clip(up, -kind.limit, kind.limit)
    return (up + 1) * gate * sigmoid(np.float32(kind.alpha) * gate)
