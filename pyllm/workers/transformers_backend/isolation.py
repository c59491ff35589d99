"""Checks of a loaded model of transformers: that it computes what transformers does, and each sequence alone.

All sequences of a step are one flat batch. Attention of ours keeps them apart; any other operation along the sequence
(a convolution, a token shift, positions counted from the start of the batch) would mix them, and would lose what came
in the step before.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from pyllm.errors import ConfigError
from pyllm.workers.step.attention_batch import Chunk
from pyllm.workers.transformers_backend.model import TransformersModel

CHECKED_TOKENS = 24
"""The sequence that is compared has so many, if the context has; the others have half of them."""
# By the dtype: the relative error of a token's hidden state that rounding makes, which grows with each layer.
_TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 2e-2}
_SEED = 20


Compute = Callable[[Sequence[Chunk]], Tensor]
"""`ForwardPass.compute_chunks` over a cache with room for both sequences."""


def check_isolation(model: TransformersModel, compute: Compute, num_tokens: int) -> None:
    """Compute a sequence of so many tokens, at least 2, in several ways, and compare.

    `compute` gives [tokens, hidden_size] of all chunks. The logits are compared on the first rank.

    Raises:
        ConfigError: with what is not the same.
    """
    random = np.random.default_rng(_SEED)
    half, tolerance, name = num_tokens // 2, _TOLERANCES[model.dtype], model.spec.architecture
    tokens = [token for token in range(model.spec.vocab_size) if token != model.padding]
    one, other, third = (random.choice(tokens, size).astype(np.int32) for size in (num_tokens, half, half))
    alone = compute([Chunk(0, one)])
    hidden, logits = model.own_attention(torch.from_numpy(one).to(alone.device))
    if not _agree(alone, hidden, tolerance):
        raise _wrong(name, "with our attention it computes something else than with its own")
    ours = model.logits(alone)
    if ours is not None and not _agree(ours, logits, tolerance):
        raise _wrong(name, "its logits do not follow from its hidden states alone")
    for before in (other, third):
        after = compute([Chunk(1, before), Chunk(0, one)])[len(before) :]
        first = compute([Chunk(0, one), Chunk(1, before)])[:num_tokens]
        if not (_agree(after, alone, tolerance) and _agree(first, alone, tolerance)):
            raise _wrong(name, "what it computes of a sequence depends on the others in the step")
    begun = compute([Chunk(0, one[:half])])
    continued = compute([Chunk(1, other), Chunk(0, one[half:], half)])[len(other) :]
    if not _agree(torch.cat([begun, continued]), alone, tolerance):
        text = "what it computes of a token depends on where a step begins, or on more than keys and values"
        raise _wrong(name, text)


def _wrong(name: str, text: str) -> ConfigError:
    return ConfigError(f"transformers' {name} cannot run here: {text}; use a model of another architecture")


def _agree(found: Tensor, expected: Tensor, tolerance: float) -> bool:
    """Whether nine tokens in ten [tokens, size] differ by no more, relative to what is expected. False for a NaN.

    Rounding may choose other experts for one token in ten.
    """
    found, expected = found.float(), expected.float()
    differences = (found - expected).norm(dim=-1) / expected.norm(dim=-1).mean()
    return bool(differences.quantile(0.9) <= tolerance)
