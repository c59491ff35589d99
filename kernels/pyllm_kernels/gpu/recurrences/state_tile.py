"""The arithmetic that kernels of recurrences share: softplus, factors between tokens, chunks and their products."""
# Triton traces a kernel's text: its arguments have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl
from torch import Tensor

from pyllm_kernels.cards import Card, card_of

_OLDEST_TF32 = 80
_TWO_BYTES = 2

CHUNK = 16
"""Tokens that are multiplied at once. They are counted from a row's first token, so cuts change the last bits."""

LEAST_LOG_FACTOR = tl.constexpr(-40.0)
"""A state after such a factor is below float32's resolution; sums of smaller ones would cost the others bits."""


def goes_in_chunks(x: Tensor, num_rows: int, card: Card | None) -> bool:
    """Whether a step's recurrence is computed in chunks: a row has several tokens, and tensor cores take tf32.

    A model of float32 wants more bits than these have.
    """
    has_tensor_cores = (card or card_of(x.device)).capability >= _OLDEST_TF32
    return x.shape[0] > num_rows and x.dtype.itemsize == _TWO_BYTES and has_tensor_cores


@triton.jit
def softplus(x):
    """`log(1 + exp(x))` in float32, without overflow, and exact for negative x."""
    small = tl.exp(-tl.abs(x))
    logarithm = tl.where(small < 0.001, small * (1 - small * (0.5 - small * 0.3333333)), tl.log(1 + small))
    return tl.maximum(x, 0.0) + logarithm


@triton.jit
def causal_factors(sums, TOKENS: tl.constexpr):
    """`exp(sums[i] - sums[j])` for j <= i, else 0: what is left at token i of token j, for falling sums [TOKENS]."""
    places = tl.arange(0, TOKENS)
    lower = places[:, None] >= places[None, :]
    return tl.where(lower, tl.exp(tl.where(lower, sums[:, None] - sums[None, :], 0.0)), 0.0)
