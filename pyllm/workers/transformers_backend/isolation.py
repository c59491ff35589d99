"""Checks of a loaded transformers model: its results equal transformers' own, and sequences do not affect each other.

All sequences of a step are one flat batch. pyllm's attention keeps them apart; any other operation along the sequence
(a convolution, a token shift, positions counted from the start of the batch) would mix them, and would lose the tokens
of earlier steps.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from pyllm.errors import ConfigError
from pyllm.workers.step.attention_batch import Chunk, Ints
from pyllm.workers.transformers_backend.model import TransformersModel

CHECKED_TOKENS = 24
"""The sequence that is compared has so many, if the context has; the others have half of them."""
# Limits on the relative rounding error of a token's hidden state or logits: with float32, and with half precision or
# integers. The last is for the comparison with transformers' attention, whose order of additions differs in each layer.
_EXACT, _ROUNDED, _BESIDE_TRANSFORMERS = 1e-3, 5e-2, 0.5
_TRIES = 3

Compute = Callable[[Sequence[Chunk]], Tensor]
"""`ForwardPass.compute_chunks` over a cache with room for both sequences."""


def check_isolation(model: TransformersModel, compute: Compute, num_tokens: int) -> None:
    """Compute a sequence of `num_tokens` tokens, at least 2, in several ways, and compare the results.

    `compute` returns [tokens, hidden_size] of all chunks. The logits are compared on the first rank. Rounding may
    choose other experts for a token, so a difference is tried again with other tokens: a real leak shows each time.

    Raises:
        ConfigError: the results differed in every try; with the first difference.
    """
    random = np.random.default_rng(20)
    tokens = [token for token in range(model.spec.vocab_size) if token != model.padding]
    differences: list[str] = []
    for _ in range(_TRIES):
        drawn = [random.choice(tokens, size).astype(np.int32) for size in (num_tokens, *[num_tokens // 2] * 2)]
        if not (difference := _difference(model, compute, drawn)):
            return
        differences.append(difference)
    name = model.spec.architecture
    raise ConfigError(f"transformers' {name} cannot run here: {differences[0]}; use another model")


def _difference(model: TransformersModel, compute: Compute, drawn: Sequence[Ints]) -> str:
    """The first difference in the results of the first sequence, beside the others; empty if there is none."""
    one, *others = drawn
    length, half = len(one), len(one) // 2
    alone = compute([Chunk(0, one)])
    own = torch.from_numpy(one).to(alone.device)
    hidden, logits = model.own_attention(own, "eager")
    if not _are_near(model, own, alone, hidden):
        return "with our attention it computes something else than with its own"
    ours = model.logits(hidden.to(model.dtype))
    if ours is not None and not _are_close(model, ours, logits):
        return "its logits do not follow from its hidden states alone"
    for other in others:
        after = compute([Chunk(1, other), Chunk(0, one)])[len(other) :]
        first = compute([Chunk(0, one), Chunk(1, other)])[:length]
        if not (_are_close(model, after, alone) and _are_close(model, first, alone)):
            return "what it computes of a sequence depends on the others in the step"
    begun = compute([Chunk(0, one[:half])])
    continued = compute([Chunk(1, others[0]), Chunk(0, one[half:], half)])[len(others[0]) :]
    if not _are_close(model, torch.cat([begun, continued]), alone):
        return "what it computes of a token depends on where a step begins, or on more than keys and values"
    return ""


def _are_near(model: TransformersModel, tokens: Tensor, found: Tensor, expected: Tensor) -> bool:
    """Whether the median error against transformers is small, or like that between two of its own attentions."""
    limit = _EXACT if model.is_exact else _BESIDE_TRANSFORMERS
    if _errors(found, expected).median() <= limit:
        return True
    if model.is_exact or not expected.isfinite().all():
        return False
    other, _ = model.own_attention(tokens, "sdpa")
    return bool(_errors(found, expected).median() <= 3 * _errors(other, expected).median())


def _are_close(model: TransformersModel, found: Tensor, expected: Tensor) -> bool:
    """Whether all tokens are equal except for rounding; False for a NaN."""
    return bool(_errors(found, expected).max() <= (_EXACT if model.is_exact else _ROUNDED))


def _errors(found: Tensor, expected: Tensor) -> Tensor:
    """The error of each token of [tokens, size], relative to the mean norm of the expected tokens."""
    found, expected = found.float(), expected.float()
    errors: Tensor = (found - expected).norm(dim=-1) / expected.norm(dim=-1).mean()
    return errors
