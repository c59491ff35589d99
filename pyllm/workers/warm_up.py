"""Steps without requests: the largest one measures memory; together with a small one it compiles all kernels.

They change neither the cache nor the slots. Knows no plans.
"""

from collections.abc import Callable

import torch
from pyllm_kernels import Kernels, LogitsEdits
from pyllm_kernels.ops.blocks import copy_blocks
from pyllm_kernels.ops.edit_logits import edit_logits
from pyllm_kernels.ops.logprobs import logprobs
from torch import Tensor

from pyllm.workers.forward_pass import ForwardPass
from pyllm.workers.kv.kv_cache import KVCache
from pyllm.workers.sampling.sampler import SamplingRows, sample


def run_largest_step(forward: ForwardPass, max_logprobs: int) -> None:
    """Compute as many tokens as a step may have; edit and sample the logits of every slot, with log-probabilities.

    `max_logprobs` -1 means the whole vocabulary.
    """
    logits = forward.compute_largest()
    if logits is not None:
        _draw(logits, sample)
        rows, device = len(logits), logits.device
        every = torch.arange(rows, dtype=torch.int32, device=device)
        none = torch.zeros(rows + 1, dtype=torch.int32, device=device)
        nothing = torch.empty(0, device=device)
        edit_logits(logits, every, LogitsEdits(none, none[:0], nothing, nothing, nothing))
        vocab_size = logits.shape[1]
        logprobs(logits, every, none[:rows], vocab_size if max_logprobs < 0 else min(max_logprobs, vocab_size))


def launch_every_kernel(
    forward: ForwardPass,
    kernels: Kernels,
    kv_cache: KVCache,
    sample: Callable[[Tensor, SamplingRows, Tensor], Tensor] = sample,
) -> None:
    """Launch every kernel once, as Triton compiles at the first launch; capturing a graph compiles its own.

    Many rows use other tiles than few. The measurement of memory also computes many rows, but not every start has it.
    """
    forward.compute_largest()
    logits = forward.compute_mixed()
    if logits is not None:
        _draw(logits, sample)
        _draw(logits.float(), sample)  # the dtype of edited logits
    onto_itself = torch.zeros((1, 2), dtype=torch.int32, device=kv_cache.memory.device)
    for keys, values in kv_cache.memory:
        kernels[copy_blocks](keys, values, onto_itself)


def _draw(logits: Tensor, sample: Callable[[Tensor, SamplingRows, Tensor], Tensor]) -> None:
    """Sample a token for each row, with filters."""
    rows = len(logits)
    some_filter = SamplingRows(
        torch.ones(rows), torch.zeros(rows, dtype=torch.int32), torch.full((rows,), 0.9), torch.zeros(rows)
    )
    sample(logits, some_filter, torch.full((rows,), 0.5, device=logits.device))
