"""The sampling parameters of rows, and the draw of a token for each. Knows neither slots nor requests."""

from dataclasses import dataclass

import numpy as np
from pyllm_kernels.ops.sample import sample as choose
from pyllm_kernels.tensors import Array, Tensor

from pyllm.workers.devices.device import Device


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """The parameters of each row of logits, in the host's arrays or on the device."""

    temperature: Tensor  # float32 [rows], 0: greedy
    top_k: Tensor  # int32 [rows], 0: off
    top_p: Tensor  # float32 [rows], 1: off
    min_p: Tensor  # float32 [rows], 0: off

    def moved(self, device: Device) -> "SamplingRows":
        """Arrays of the host on the device."""
        return SamplingRows(*device.all_from_host((self.temperature, self.top_k, self.top_p, self.min_p)))


def sample(
    logits: Tensor, parameters: SamplingRows, uniforms: Tensor, device: Device, rows: Array | None = None
) -> Tensor:
    """Choose tokens by `pyllm_kernels.ops.sample`: parameters and `rows` on the host, all else on the device."""
    on_device = None if rows is None else device.from_host(rows.astype(np.int32))
    return sample_on_device(logits, parameters.moved(device), uniforms, on_device)


def sample_on_device(logits: Tensor, parameters: SamplingRows, uniforms: Tensor, rows: Tensor | None) -> Tensor:
    """Choose tokens with all inputs on the device, `rows` int32: a graph can hold it."""
    numbers = parameters.temperature, parameters.top_k, parameters.top_p, parameters.min_p
    return choose(logits, *numbers, uniforms, rows)
