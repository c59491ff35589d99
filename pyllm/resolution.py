"""What is to run, with nothing left open: the model's description is read, and all that is `auto` or None replaced.

Imports no torch: a driver is asked for its cards by itself.
"""

import ctypes
from pathlib import Path

import msgspec

from pyllm.checkpoint import Checkpoint, check_tensor_parallel, read_checkpoint
from pyllm.config import CacheConfig, EngineConfig, SchedulerConfig
from pyllm.core.policies import find_policy
from pyllm.core.recording import check_new
from pyllm.errors import ConfigError
from pyllm.flight_recorder import resolve_folder
from pyllm.precision import resolve_precision
from pyllm.workers.attention_backends import find_attention_backend

# Tokens in a step unless said otherwise. A CPU computes as many a second in small steps as in large ones, and a stream
# waits for each step with others' prompts in it; `benchmarks/README.md` has the figures.
BATCHED_TOKENS = {"cuda": 2048, "cpu": 192}
SPECULATIVE_TOKENS = 5


def resolve(config: EngineConfig) -> tuple[EngineConfig, Checkpoint]:
    """Read the model's description and replace everything that is `auto` or None.

    Raises:
        ConfigError: the model cannot be read, or two settings do not go together.
    """
    checkpoint = read_checkpoint(config.model.model)
    architecture = checkpoint.architecture
    device, cards = config.device.device, _cuda_device_count()
    if device == "auto":
        device = "cuda" if cards else "cpu"
    ranks = config.parallel.tensor_parallel_size
    if device == "cuda" and cards < ranks:
        raise ConfigError(f"device cuda: {ranks} rank(s) need as many cards, {cards} are visible; use --device cpu")
    check_tensor_parallel(architecture, ranks)
    if ranks > 1 and config.parallel.distributed_executor_backend == "uni":
        raise ConfigError(f"the uni executor runs one rank, not {ranks}: use distributed_executor_backend mp")
    longest = architecture.max_position_embeddings
    _check_cache(config.cache)
    find_policy(config.scheduler.scheduling_policy)
    find_attention_backend(config.device.attention_backend)
    if config.device.batch_invariant:
        _check_batch_invariant(config, architecture.dtype, device)
    recording = config.scheduler.scheduler_recording and str(Path(config.scheduler.scheduler_recording).absolute())
    if recording:
        check_new(Path(recording))
    crashes = resolve_folder(config.recovery.flight_recorder_dir)
    max_model_len = config.model.max_model_len or longest
    if max_model_len > longest:
        raise ConfigError(f"max_model_len {max_model_len} is more than the model's context of {longest} tokens")
    dtype, quantization, kv_cache_dtype = resolve_precision(config, checkpoint, device)
    return (
        msgspec.structs.replace(
            config,
            model=msgspec.structs.replace(
                config.model,
                served_model_name=tuple(dict.fromkeys(config.model.served_model_name)) or (checkpoint.name,),
                dtype=dtype,
                quantization=quantization,
                max_model_len=max_model_len,
            ),
            cache=msgspec.structs.replace(config.cache, kv_cache_dtype=kv_cache_dtype),
            scheduler=msgspec.structs.replace(
                config.scheduler,
                scheduler_recording=recording,
                max_num_batched_tokens=_batched_tokens(config.scheduler, device),
                num_speculative_tokens=_speculative_tokens(config, device, {dtype, kv_cache_dtype}),
            ),
            device=msgspec.structs.replace(config.device, device=device),
            recovery=msgspec.structs.replace(config.recovery, flight_recorder_dir=crashes),
        ),
        checkpoint,
    )


def _batched_tokens(scheduler: SchedulerConfig, device: str) -> int:
    return scheduler.max_num_batched_tokens or max(BATCHED_TOKENS[device], scheduler.max_num_seqs)


def _speculative_tokens(config: EngineConfig, device: str, dtypes: set[str]) -> int:
    """None by default but where a token is bitwise the same however many its row has: with the Rust kernels."""
    if (chosen := config.scheduler.num_speculative_tokens) is not None:
        return chosen
    backends = {config.device.kernel_backend, config.device.attention_backend}
    is_rust = device == "cpu" and backends <= {"auto", "cpu"} and "float16" not in dtypes
    return SPECULATIVE_TOKENS if is_rust else 0


def _check_batch_invariant(config: EngineConfig, file_dtype: str, device: str) -> None:
    """Refuse what torch computes, in an order that depends on the batch."""
    chosen, ranks = config.device, config.parallel.tensor_parallel_size
    if device == "cuda" and ranks > 1:
        raise ConfigError(
            f"batch_invariant on GPUs runs one rank, not {ranks}: the order in which NCCL adds depends on the batch"
        )
    ours = "triton" if device == "cuda" else "cpu"
    for name, value in (("kernel_backend", chosen.kernel_backend), ("attention_backend", chosen.attention_backend)):
        if value not in {"auto", ours}:
            raise ConfigError(f"batch_invariant on {device} is what {ours} promises, not {name} {value}: leave it auto")
    dtypes = {config.model.dtype, config.cache.kv_cache_dtype}
    if device == "cpu" and ("float16" in dtypes or (config.model.dtype == "auto" and file_dtype == "float16")):
        raise ConfigError("batch_invariant on a CPU is not of float16, which torch computes: use float32 or bfloat16")


def _check_cache(cache: CacheConfig) -> None:
    if cache.block_size & (cache.block_size - 1):
        raise ConfigError(f"block_size must be a power of two, got {cache.block_size}")
    if not cache.enable_prefix_caching and (cache.max_pinned_blocks or cache.enable_kv_cache_events):
        raise ConfigError(
            "max_pinned_blocks and enable_kv_cache_events are about the prefix cache: enable_prefix_caching"
        )


def _cuda_device_count() -> int:
    """Ask the driver, so that no process has to import torch for it."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value
