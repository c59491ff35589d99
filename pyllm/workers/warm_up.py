"""Steps without requests: the largest one measures memory; together with a small one it compiles all kernels.

They change neither the cache nor the slots. Knows no plans.
"""

from collections.abc import Callable

import numpy as np
from pyllm_kernels import Kernels, LogitsEdits
from pyllm_kernels.ops.blocks import copy_blocks
from pyllm_kernels.ops.edit_logits import edit_logits
from pyllm_kernels.ops.logprobs import logprobs
from pyllm_kernels.tensors import Tensor

from pyllm.workers.devices.device import Device
from pyllm.workers.forward_pass import ForwardPass
from pyllm.workers.kv.kv_cache import KVCache
from pyllm.workers.sampling.sampler import SamplingRows, sample

Sampler = Callable[[Tensor, SamplingRows, Tensor, Device], Tensor]
"""`sample`, or one that computes the same."""


def run_largest_step(forward: ForwardPass, device: Device, max_logprobs: int) -> None:
    """Compute as many tokens as a step may have; edit and sample the logits of every slot, with log-probabilities.

    `max_logprobs` -1 means the whole vocabulary.
    """
    logits = forward.compute_largest()
    if logits is not None:
        _draw(logits, device, sample)
        rows, vocab_size = logits.shape
        every = device.from_host(np.arange(rows, dtype=np.int32))
        nothing = LogitsEdits(np.zeros(rows + 1, np.int32), np.zeros(0, np.int32), *np.zeros((3, 0), np.float32))
        edit_logits(logits, every, nothing.moved(device.all_from_host))
        num_top = vocab_size if max_logprobs < 0 else min(max_logprobs, vocab_size)
        logprobs(logits, every, device.zeros((rows,), "int32"), num_top)


def launch_every_kernel(forward: ForwardPass, kernels: Kernels, kv_cache: KVCache, sample: Sampler = sample) -> None:
    """Launch every kernel once, as Triton compiles at the first launch; capturing a graph compiles its own.

    Many rows use other tiles than few. The measurement of memory also computes many rows, but not every start has it.
    """
    device = kv_cache.device
    forward.compute_largest()
    logits = forward.compute_mixed()
    if logits is not None:
        _draw(logits, device, sample)
        wide = device.empty(logits.shape, "float32")  # the dtype of edited logits
        wide[...] = logits
        _draw(wide, device, sample)
    onto_itself = device.zeros((1, 2), "int32")
    for layer in kv_cache.memory:
        kernels[copy_blocks](layer[0], layer[-1], onto_itself)


def _draw(logits: Tensor, device: Device, sample: Sampler) -> None:
    """Sample a token for each row, with filters."""
    ones = np.ones(len(logits), np.float32)
    some_filter = SamplingRows(ones, np.zeros(len(logits), np.int32), ones * np.float32(0.9), ones * 0)
    sample(logits, some_filter, device.from_host(ones / 2), device)
