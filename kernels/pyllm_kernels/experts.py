"""The parts of a mixture-of-experts layer: the router's rule, the activation, and the matrices of this rank's experts.

Does not know how they are multiplied.
"""

from dataclasses import dataclass

from torch import Tensor

from pyllm_kernels.cpu_linear import PackedLinear


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
