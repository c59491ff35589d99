"""The device of a rank, and the kernels for it. Knows no model."""

import torch
from pyllm_kernels import BackendError, CardError, Kernels, batch_invariant, check_card, select
from pyllm_kernels.ops.paged_attention import paged_attention

from pyllm.config.engine_settings import EngineConfig
from pyllm.config.process_config import WorkerConfig
from pyllm.config.rank_coordinates import num_ranks
from pyllm.errors import ConfigError
from pyllm.workers.attention_backends import AttentionBackend

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "fp8": torch.float8_e4m3fn,
}


def worker_device(config: WorkerConfig) -> torch.device:
    """The device of a rank: the CPU, the configured GPU, or by default GPUs in the order of cores and their ranks."""
    kind = config.engine.device.device
    number = config.core_index * num_ranks(config.engine.parallel) + config.rank
    return torch.device("cuda", number if config.gpu is None else config.gpu) if kind == "cuda" else torch.device(kind)


def sum_in_float32() -> None:
    """Make torch accumulate matrix products in float32 on every device; by default cuBLAS may accumulate in the dtype.

    Split sums stay allowed: their parts are float32, too.
    """
    matmul = torch.backends.cuda.matmul
    matmul.allow_bf16_reduced_precision_reduction = False
    matmul.allow_fp16_reduced_precision_reduction = False
    matmul.allow_fp16_accumulation = False
    torch.set_float32_matmul_precision("highest")  # TF32 off


def fits_graphs(device_type: str, kernels: Kernels, attention: AttentionBackend) -> bool:
    """Whether a graph can hold the ops: on a GPU none of them waits for the device, on a CPU all of them are Rust."""
    if device_type == "cuda":
        return kernels.backend == "triton" and attention.in_graphs
    return kernels.backend == "cpu" and attention.attend is kernels[paged_attention]


def configured_kernels(engine: EngineConfig, device: torch.device) -> Kernels:
    """The configured ops for a device.

    Raises:
        ConfigError: the device cannot run them.
    """
    backend = engine.device.kernel_backend
    try:
        kernels = select(backend, device)
        if device.type == "cuda":
            dtypes = DTYPES[engine.model.dtype], DTYPES[engine.cache.kv_cache_dtype]
            check_card(torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device), *dtypes)
    except BackendError as error:
        raise ConfigError(f"kernel_backend {backend}: {error}") from error
    except CardError as error:
        raise ConfigError(str(error)) from error
    return batch_invariant(kernels) if engine.device.batch_invariant else kernels
