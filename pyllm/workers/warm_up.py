"""Steps of nobody: the one that needs the most memory, and a small one after which no step waits for a compilation.

They leave the cache, slots and logits of others as they were. Does not know plans.
"""

from collections.abc import Callable

import torch
from pyllm_kernels import Kernels, LogitsEdits, edit_logits, logprobs
from torch import Tensor

from pyllm.workers.forward_pass import ForwardPass
from pyllm.workers.kv_cache import KVCache
from pyllm.workers.sampler import SamplingRows, sample


def run_largest_step(forward: ForwardPass, max_logprobs: int) -> None:
    """Compute the most tokens; change, sample and tell the logits of every slot."""
    logits = forward.compute_largest()
    if logits is not None:
        _draw(logits, sample)
        rows, device = len(logits), logits.device
        every = torch.arange(rows, dtype=torch.int32, device=device)
        none = torch.zeros(rows + 1, dtype=torch.int32, device=device)
        nothing = torch.empty(0, device=device)
        edit_logits(logits, every, LogitsEdits(none, none[:0], nothing, nothing, nothing))
        logprobs(logits, every, none[:rows], min(max_logprobs, logits.shape[1]))


def launch_every_kernel(
    forward: ForwardPass,
    kernels: Kernels,
    kv_cache: KVCache,
    sample: Callable[[Tensor, SamplingRows, Tensor], Tensor] = sample,
) -> None:
    """Do once what Triton compiles at its first launch; graphs, whose inputs lie elsewhere, see to their own."""
    logits = forward.compute_mixed()
    if logits is not None:
        _draw(logits, sample)
        _draw(logits.float(), sample)  # as those are that were changed for a request
    onto_itself = torch.zeros((1, 2), dtype=torch.int32, device=kv_cache.memory.device)
    for keys, values in kv_cache.layers:
        kernels.copy_blocks(keys, values, onto_itself)


def _draw(logits: Tensor, sample: Callable[[Tensor, SamplingRows, Tensor], Tensor]) -> None:
    """A token of each row, as a request with filters wants it."""
    rows = len(logits)
    some_filter = SamplingRows(
        torch.ones(rows), torch.zeros(rows, dtype=torch.int32), torch.full((rows,), 0.9), torch.zeros(rows)
    )
    sample(logits, some_filter, torch.full((rows,), 0.5, device=logits.device))
