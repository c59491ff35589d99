"""A mixture of experts, and its parts: the router's rule, the activation, and the matrices of this rank's experts."""

from dataclasses import dataclass, replace

import numpy as np

from pyllm_kernels import _cpu, graph
from pyllm_kernels.op import op
from pyllm_kernels.ops.activation import ACTIVATIONS, LimitedSwiglu, limited_swiglu, sigmoid
from pyllm_kernels.ops.packed_linear import PackedLinear, packed_linear
from pyllm_kernels.tensors import Array, Floats, Tensor, rounded, softmax, widened

_LEAST_SUM = np.float32(1e-20)  # keeps the sum of weights that are all 0 from dividing them, as in DeepSeek V3


@dataclass(frozen=True, slots=True)
class ExpertGroups:
    """Groups of equal size, `count` in number: a token takes experts of the `active` best groups alone (DeepSeek V2).

    A group's score is the sum of its `best` largest.
    """

    count: int
    active: int
    best: int


@dataclass(frozen=True, slots=True)
class Router:
    """The router's rule: each token takes the `active` experts with the largest scores, which are their weights.

    - `normalised`: the weights taken add up to 1.
    - `first`, `count`: the range of this rank's experts.
    - `scores`: a "softmax" over all logits; the "sigmoid" of each (DeepSeek V3, arXiv 2412.19437); or "sparse_mixer"
      (arXiv 2409.12136): experts are chosen one after the other, by a softmax over those that are left and whose logits
      differ from their largest by at most `tolerance` times the larger magnitude.
    - `factor`: multiplies the weights.
    - `weighs_inputs`: the weights multiply the inputs of the experts, not their outputs (Llama 4).
    - `correction`: float32 [experts], added to the scores for the choice alone, also for that of `groups`.
    - `expert_factors`: float32 [experts], multiply the weights, each that of its expert (Gemma 4).
    """

    num_experts: int
    active: int
    normalised: bool
    first: int
    count: int
    scores: str = "softmax"
    tolerance: float = 0.0
    factor: float = 1.0
    weighs_inputs: bool = False
    correction: Tensor | None = None
    groups: ExpertGroups | None = None
    expert_factors: Tensor | None = None


@dataclass(frozen=True, slots=True)
class ClampedSwiglu:
    """`(up + 1) * gate * sigmoid(alpha * gate)`; gate is at most `limit`, up from `-limit` to `limit`."""

    limit: float
    alpha: float


ExpertActivation = str | ClampedSwiglu | LimitedSwiglu


@dataclass(frozen=True, slots=True)
class ExpertMatrices:
    """The matrices of this rank's experts, each kind packed as one matrix with the experts stacked by rows.

    `gate` and `up` are [count * size, hidden], `down` is [count * hidden, size]; sizes are multiples of 32. Biases are
    [count, outputs], of the dtype of inputs; gate and up both have one or neither has. `down_bias` is None if another
    rank adds it. Experts without a gate have no biases but that of `down`.
    """

    gate: PackedLinear | None
    up: PackedLinear
    down: PackedLinear
    gate_bias: Tensor | None = None
    up_bias: Tensor | None = None
    down_bias: Tensor | None = None


def _experts(x: Array, logits: Array, router: Router, kind: ExpertActivation, matrices: ExpertMatrices) -> Array:
    chosen, weights = _choose(widened(logits), router)
    total = np.zeros(x.shape, np.float32)
    for index in range(router.count):
        tokens, places = np.nonzero(chosen == router.first + index)
        if len(tokens):
            rows, factors = x[tokens], weights[tokens, places][:, None]
            if router.weighs_inputs:
                rows, factors = rounded(widened(rows) * factors, x), np.ones_like(factors)
            inner = _outputs(rows, matrices.up, matrices.up_bias, index, router)
            if matrices.gate is not None:
                gate = _outputs(rows, matrices.gate, matrices.gate_bias, index, router)
                inner = _combine(gate, inner, kind)
            elif isinstance(kind, str):
                inner = ACTIVATIONS[kind](inner)
            inner = rounded(inner, x)
            result = _outputs(inner, matrices.down, matrices.down_bias, index, router)
            total[tokens] += factors * result
    return rounded(total, x)


@op(reference=_experts, triton="pyllm_kernels.gpu.grouped_experts")
def experts(x: Tensor, logits: Tensor, router: Router, kind: ExpertActivation, matrices: ExpertMatrices) -> Tensor:
    """Mixture of experts (arXiv 1701.06538): the sum of `weight * expert(x)` over the experts chosen for each token.

    x [tokens, hidden] and the router's logits [tokens, experts], of x's dtype or float32 -> [tokens, hidden]. An expert
    is `down(act(gate(x)) * up(x))`, with activations as in `activation`, or has a clamped gate; without a gate it is
    `down(act(up(x)))`. Biases are added in float32. Of equal experts, and of equal groups, the first
    are chosen. Results are added in float32, in the order of the experts; experts of other ranks add nothing. On a CPU
    a token's result does not depend on other tokens. In Triton, except for float32, the number of tokens picks one of
    two tiles, as for `linear_w4a16`; `batch_invariant` uses one tile, and then a token's result does not depend on
    other tokens.

    Raises `ValueError` for shapes, strides and dtypes that do not fit.
    """
    packed = (matrices.gate, matrices.up, matrices.down)
    if any(matrix is not None and matrix.layout is None for matrix in packed):
        return graph.not_captured(experts)(x, logits, router, kind, matrices)
    out = graph.empty(x.shape, x)
    _cpu.ops.experts(x, logits, router, kind, matrices, out)
    return out


def _choose(logits: Floats, router: Router) -> tuple[Array, Floats]:
    """The experts of each token and their weights, [tokens, active]."""
    if router.scores == "sparse_mixer":
        return _mix(logits, router)
    scores = softmax(logits) if router.scores == "softmax" else sigmoid(logits)
    if router.correction is None and router.groups is None:
        keys = logits  # Scores have the order of the logits, and equal ones may be of unequal logits.
    else:
        keys = scores if router.correction is None else scores + router.correction
    if router.groups is not None:
        keys = _without_other_groups(keys, router.groups)
    chosen = _largest(keys, router.active)
    weights = np.take_along_axis(scores, chosen, -1)
    if router.normalised:
        weights = weights / (weights.sum(-1, keepdims=True) + _LEAST_SUM)
    weights = weights * np.float32(router.factor)
    return chosen, weights if router.expert_factors is None else weights * router.expert_factors[chosen]


def _mix(logits: Floats, router: Router) -> tuple[Array, Floats]:
    left, chosen, weights = logits.copy(), [], []
    for _ in range(router.active):
        best = _largest(left, 1)
        largest = np.take_along_axis(left, best, -1)
        is_far = (largest - logits) / np.maximum(np.abs(logits), largest) > router.tolerance
        shares = softmax(np.where(is_far, -np.inf, left))
        chosen.append(best)
        weights.append(np.take_along_axis(shares, best, -1))
        np.put_along_axis(left, best, -np.inf, -1)
    return np.concatenate(chosen, -1), np.concatenate(weights, -1) * np.float32(router.factor)


def _without_other_groups(keys: Floats, groups: ExpertGroups) -> Floats:
    """The keys, with minus infinity for the experts of all but the best groups."""
    by_group = keys.reshape(len(keys), groups.count, -1)
    best = _largest(np.sort(by_group, -1)[..., -groups.best :].sum(-1), groups.active)
    is_active = (np.arange(groups.count) == best[..., None]).any(1)
    return np.where(is_active[..., None], by_group, -np.inf).reshape(keys.shape).astype(np.float32)


def _largest(keys: Floats, count: int) -> Array:
    """The indices of the largest keys of each row; of equal keys, the first."""
    order = np.where(np.isnan(keys), -np.inf, -keys)
    return np.argsort(order, axis=-1, kind="stable")[:, :count]


def _outputs(x: Array, packed: PackedLinear, bias: Array | None, index: int, router: Router) -> Floats:
    """The product of some rows with the matrix of an expert, and its bias."""
    size = packed.out_features // router.count
    own = slice(index * size, (index + 1) * size)
    matrix = replace(packed, data=packed.data[own], factors=tuple(factor[own] for factor in packed.factors))
    product = widened(packed_linear.reference(x, matrix))
    return product if bias is None else product + widened(bias[index])


def _combine(gate: Floats, up: Floats, kind: ExpertActivation) -> Floats:
    if isinstance(kind, str):
        return ACTIVATIONS[kind](gate) * up
    if isinstance(kind, LimitedSwiglu):
        return limited_swiglu(gate, up, kind.limit)
    gate, up = np.minimum(gate, np.float32(kind.limit)), np.clip(up, -kind.limit, kind.limit)
    return (up + 1) * gate * sigmoid(np.float32(kind.alpha) * gate)
