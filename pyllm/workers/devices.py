"""The device of a rank, and the kernels that it can run. Knows no model."""

import torch
from pyllm_kernels import BackendError, CardError, Kernels, batch_invariant, check_card, select

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
    """The device of a rank: the GPU that it was given, else one for each rank of the first core, then of the next; or
    the CPU.
    """
    kind = config.engine.device.device
    number = config.core_index * num_ranks(config.engine.parallel) + config.rank
    return torch.device("cuda", number if config.gpu is None else config.gpu) if kind == "cuda" else torch.device(kind)


def sum_in_float32() -> None:
    """Have torch add up products of matrices in float32, on every device; by default cuBLAS may add in the dtype.

    Splits of a long sum stay allowed: their parts are float32 then, too.
    """
    matmul = torch.backends.cuda.matmul
    matmul.allow_bf16_reduced_precision_reduction = False
    matmul.allow_fp16_reduced_precision_reduction = False
    matmul.allow_fp16_accumulation = False
    torch.set_float32_matmul_precision("highest")  # TF32 off


def fits_graphs(device_type: str, kernels: Kernels, attention: AttentionBackend) -> bool:
    """Whether a graph can hold the ops: none of them waits for a GPU, or all of them are Rust on a CPU."""
    if device_type == "cuda":
        return kernels.backend == "triton" and attention.in_graphs
    return kernels.backend == "cpu" and attention.attend is kernels.paged_attention


def configured_kernels(engine: EngineConfig, device: torch.device) -> Kernels:
    """The ops as configured, for a card that can run them."""
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
