"""Log-probabilities of prompt tokens: each position that a step computes scores the token after it.

Knows slots, not requests; its caller passes the function that computes logits.
"""

from collections.abc import Callable

import numpy as np
from pyllm_kernels.tensors import Tensor

from pyllm.workers.sampling.logprobs import PromptLogprobs
from pyllm.workers.sampling.sampling_slots import Prompt
from pyllm.workers.sampling.token_sampler import TokenSampler
from pyllm.workers.step.batch import Batch

# Rows of logits that are computed at a time.
_LOGITS_AT_ONCE = 64


def score_prompts(
    batch: Batch,
    hidden: Tensor,
    prompts: dict[int, Prompt],
    logits: Callable[[Tensor, Tensor], Tensor | None],
    sampler: TokenSampler,
) -> list[PromptLogprobs]:
    """Score the `prompts`, by slot: each position of this step scores the token after it.

    `hidden` is [tokens, hidden_size]; `logits(hidden, rows)` returns [rows, vocab_size], or None on ranks that do not
    sample. A prompt is removed from `prompts` after its last position.
    """
    host = batch.host
    scored: list[PromptLogprobs] = []
    if not prompts:
        return scored
    for row in np.flatnonzero(np.isin(host.slots, list(prompts))).tolist():
        slot, length = int(host.slots[row]), int(host.sequence_lengths[row])
        prompt = prompts[slot]
        first = int(host.query_starts[row])
        position = int(host.positions[first])
        tokens = prompt.tokens[position + 1 : length + 1]
        parts = []
        for start in range(0, len(tokens), _LOGITS_AT_ONCE):
            some = tokens[start : start + _LOGITS_AT_ONCE]
            rows = sampler.device.from_host(np.arange(first + start, first + start + len(some), dtype=np.int32))
            if (rows_logits := logits(hidden, rows)) is not None:
                parts.append(sampler.prompt_part(rows_logits, some, prompt.num_top))
        if length >= len(prompt.tokens):
            del prompts[slot]
        if parts:
            scored.append(PromptLogprobs(row, tokens, tuple(parts)))
    return scored
