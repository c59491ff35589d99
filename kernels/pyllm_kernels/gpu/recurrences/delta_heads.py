"""A head of the gated delta rule: its shape, its columns in the ops' matrices, and the arithmetic of single numbers."""
# Triton traces a kernel's text: its arguments have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from typing import NamedTuple

import triton
import triton.language as tl

from pyllm_kernels.gpu.recurrences.state_tile import softplus
from pyllm_kernels.integers import next_power_of_2
from pyllm_kernels.launcher import Constant

_EPSILON = tl.constexpr(1e-6)
_LEAST_TILE = 16  # of Triton's products


class DeltaShape(NamedTuple):
    """The heads of a layer. `many`: a factor for each dimension of the keys; `tiled`: see `gated_delta_rule`."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    many: bool
    tiled: bool

    def constants(self) -> dict[str, Constant]:
        """The constants of every kernel of the delta rule."""
        return {name.upper(): value for name, value in self._asdict().items()} | {
            "BLOCK_K": max(next_power_of_2(self.key_dim), _LEAST_TILE),
            "enable_fp_fusion": True,
        }

    def block_v(self, numbers: int) -> int:
        """The columns of a state in a program that has so many numbers of it, or more where that is too few."""
        block_k = max(next_power_of_2(self.key_dim), _LEAST_TILE)
        return max(min(numbers // block_k, next_power_of_2(self.value_dim)), _LEAST_TILE)


@triton.jit
def key_head(head, KEY_HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr, TILED: tl.constexpr):
    """The head of queries and keys that a value head has."""
    return head % KEY_HEADS if TILED else head // (VALUE_HEADS // KEY_HEADS)


@triton.jit
def inverse_length(x, AXIS: tl.constexpr):
    """The factor that gives vectors along an axis a length of 1."""
    return tl.rsqrt(tl.sum(x * x, axis=AXIS) + _EPSILON)


@triton.jit
def log_factor(decay, bias, scale):
    """The logarithm of what a state keeps at a token."""
    return -tl.exp(scale) * softplus(decay.to(tl.float32) + bias)
