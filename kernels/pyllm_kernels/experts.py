"""What a layer of experts is made of: its router's rule, its activation, and the matrices of the experts that are here.

It does not know how they are multiplied.
"""

from dataclasses import dataclass

from torch import Tensor

from pyllm_kernels.cpu_linear import PackedLinear


@dataclass(frozen=True, slots=True)
class Router:
    """How scores become weights: a softmax over all experts, of which each token keeps the `active` largest.

    With `normalised` those that are kept add up to 1. `first` and `count` are the experts whose matrices are here.
    """

    num_experts: int
    active: int
    normalised: bool
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class ClampedSwiglu:
    """`(up + 1) * gate * sigmoid(alpha * gate)` of a gate up to `limit`, and of an up from `-limit` to `limit`."""

    limit: float
    alpha: float


@dataclass(frozen=True, slots=True)
class ExpertMatrices:
    """The matrices of all experts that are here, each kind packed as one, an expert below the other.

    `gate` and `up` are [count * size, hidden], `down` is [count * hidden, size]; sizes are multiples of 32. Biases are
    [count, outputs], of the dtype of inputs: of gate and up both or neither. `down_bias` is left out where another rank
    adds it.
    """

    gate: PackedLinear
    up: PackedLinear
    down: PackedLinear
    gate_bias: Tensor | None = None
    up_bias: Tensor | None = None
    down_bias: Tensor | None = None
