"""The logits that tokens are drawn from, after temperature and filters: for `--logprobs-mode processed_logprobs`."""

import numpy as np
from pyllm_kernels.ops.sample import filtered_weights
from pyllm_kernels.tensors import Tensor

from pyllm.workers.devices.device import Device
from pyllm.workers.sampling.sampler import SamplingRows


def process_logits(logits: Tensor, parameters: SamplingRows, tokens: Tensor, device: Device) -> None:
    """Divide float32 logits [rows, vocabulary] by the temperature, and exclude what min-p, top-k and top-p exclude.

    `parameters` are on the host; `tokens` [rows], which were drawn, are never excluded. Rows of temperature 0 stay as
    they are. Rows with a filter are computed on the host, one after the other.
    """
    temperature = np.where(parameters.temperature > 0, parameters.temperature, 1.0).astype(np.float32)
    filters = (parameters.top_k > 0) | (parameters.top_p < 1) | (parameters.min_p > 0)
    filtered = np.flatnonzero(filters & (parameters.temperature > 0)).tolist()
    for row in filtered:
        numbers = device.host_copy(logits[row]).wait()
        known = np.nan_to_num(numbers, nan=-np.inf, posinf=np.inf, neginf=-np.inf)
        if np.isfinite(known.max()):
            top_k, top_p, min_p = (one[row] for one in (parameters.top_k, parameters.top_p, parameters.min_p))
            is_kept = filtered_weights(known, temperature[row], top_k, top_p, min_p) > 0
            is_kept[int(tokens[row])] = True
            logits[row] = device.from_host(np.where(is_kept, numbers, -np.inf).astype(np.float32))
    if (temperature != 1).any():
        logits /= device.from_host(temperature)[:, None]
