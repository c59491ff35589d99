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

NUM_TOKENS = 24
"""Of the sequence that is compared, if the context has so many; the others have half of them."""
# Of a token's hidden state, by the dtype: the error that rounding makes, which grows with each layer.
_TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 2e-2}
_SEED = 20


Compute = Callable[[Sequence[Chunk]], Tensor]
"""`ForwardPass.compute_chunks` over a cache with room for both sequences."""


def check_isolation(model: TransformersModel, compute: Compute, num_tokens: int) -> None:
    """Compute a sequence of so many tokens in several ways, and compare.

    Raises:
        ConfigError: with what is not the same.
    """
    random = np.random.default_rng(_SEED)
    half, tolerance, name = num_tokens // 2, _TOLERANCES[model.dtype], model.spec.architecture
    one, other, third = (random.choice(model.token_ids, size).astype(np.int32) for size in (num_tokens, half, half))
    alone = compute([Chunk(0, one)])
    hidden, logits = model.own_attention(torch.from_numpy(one).to(alone.device))
    if _difference(alone, hidden) > tolerance:
        raise _wrong(name, "with our attention it computes something else than with its own")
    ours = model.logits(alone)
    if ours is not None and _difference(ours, logits) > tolerance:
        raise _wrong(name, "its logits do not follow from its hidden states alone")
    for before in (other, third):
        after = compute([Chunk(1, before), Chunk(0, one)])[len(before) :]
        first = compute([Chunk(0, one), Chunk(1, before)])[:num_tokens]
        if max(_difference(after, alone), _difference(first, alone)) > tolerance:
            raise _wrong(name, "what it computes of a sequence depends on the others in the step")
    begun = compute([Chunk(0, one[:half])])
    continued = compute([Chunk(1, other), Chunk(0, one[half:], half)])[len(other) :]
    if _difference(torch.cat([begun, continued]), alone) > tolerance:
        raise _wrong(
            name, "what it computes of a token depends on where a step begins, or on more than keys and values"
        )


def _wrong(name: str, text: str) -> ConfigError:
    return ConfigError(f"transformers' {name} cannot run here: {text}")


def _difference(found: Tensor, expected: Tensor) -> float:
    """Of nine tokens in ten, the largest difference, relative to what is expected: experts may change for a tenth."""
    found, expected = found.float(), expected.float()
    scale = expected.norm(dim=-1).mean()
    return float((found - expected).norm(dim=-1).quantile(0.9) / scale)
