"""The configured device of a rank, and the kernels for it. Knows no model."""

from pyllm_kernels import BackendError, CardError, Kernels, batch_invariant, check_card, select

from pyllm.config.engine_settings import EngineConfig
from pyllm.config.process_config import WorkerConfig, needs_torch
from pyllm.config.rank_coordinates import index_among_all
from pyllm.errors import ConfigError
from pyllm.workers.devices.device import Device
from pyllm.workers.devices.host import HostDevice

DTYPES = {"float32": "float32", "bfloat16": "bfloat16", "float16": "float16", "fp8": "float8_e4m3fn"}
"""The dtypes of settings."""


def worker_device(config: WorkerConfig) -> Device:
    """The device of a rank: the CPU, the configured GPU, or by default GPUs in the order of cores and their ranks.

    Whatever needs torch computes with its tensors on a CPU, too.
    """
    kind = config.engine.device.device
    if not needs_torch(config.engine, config.checkpoint):
        return HostDevice()
    import torch

    from pyllm.workers.devices.torch_device import TorchDevice

    number = index_among_all(config.core_index, config.rank, config.engine.parallel)
    gpu = number if config.gpu is None else config.gpu
    return TorchDevice(torch.device("cuda", gpu) if kind == "cuda" else torch.device(kind))


def configured_kernels(engine: EngineConfig, device: Device, widest_head: int) -> Kernels:
    """The configured ops for a device, and for a model with such heads (`check_card`).

    Raises:
        ConfigError: the device cannot run them.
    """
    backend = engine.device.kernel_backend
    try:
        kernels = select(backend, device.type)
        if device.type == "cuda":
            from pyllm.workers.devices.torch_device import capability_of

            dtypes = DTYPES[engine.model.dtype], DTYPES[engine.cache.kv_cache_dtype]
            check_card(device.name, capability_of(device), *dtypes, widest_head)
    except BackendError as error:
        raise ConfigError(f"kernel_backend {backend}: {error}") from error
    except CardError as error:
        raise ConfigError(str(error)) from error
    return batch_invariant(kernels) if engine.device.batch_invariant else kernels
