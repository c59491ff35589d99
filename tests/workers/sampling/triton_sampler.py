"""The Triton version of `sample`, for tensors on any device: the op itself takes Rust's on a CPU."""

from pyllm_kernels.ops.sample import sample
from pyllm_kernels.tensors import Array
from torch import Tensor

from pyllm.workers.devices.device import Device
from pyllm.workers.sampling.sampler import SamplingRows


def sample_by_triton(
    logits: Tensor, parameters: SamplingRows, uniforms: Tensor, device: Device, rows: Array | None = None
) -> Tensor:
    """Choose tokens like `sampler.sample`."""
    on_device = None if rows is None else device.from_host(rows)
    return sample_by_triton_on_device(logits, parameters.moved(device), uniforms, on_device)


def sample_by_triton_on_device(
    logits: Tensor, parameters: SamplingRows, uniforms: Tensor, rows: Tensor | None
) -> Tensor:
    """Choose tokens like `sampler.sample_on_device`."""
    numbers = parameters.temperature, parameters.top_k, parameters.top_p, parameters.min_p
    tokens: Tensor = sample.version("triton")(logits, *numbers, uniforms, rows)
    return tokens
