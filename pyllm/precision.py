"""In which precision a model is computed: what `auto` stands for, and what does not go together.

Imports no kernel: this is decided before any process is started.
"""

from collections.abc import Set
from typing import cast

from pyllm.checkpoint import Architecture, Checkpoint
from pyllm.config import Dtype, EngineConfig, KVCacheDtype, Quantization
from pyllm.errors import ConfigError
from pyllm.processor import instructions

GROUP = 32  # features of GGUF's blocks, which ranks cannot cut


def resolve_precision(
    config: EngineConfig, checkpoint: Checkpoint, device: str
) -> tuple[Dtype, Quantization, KVCacheDtype]:
    """What `auto` stands for in the precisions; who names a dtype wants no less than that.

    Raises:
        ConfigError: two of them do not go together, or not with the device or the model's format.
    """
    model, file_dtype = config.model, cast(Dtype, checkpoint.architecture.dtype)
    quantization = model.quantization
    if quantization == "auto":
        is_quantised = any(entry.type.startswith(("Q", "IQ")) for entry in checkpoint.tensors)
        is_wanted = is_quantised and device == "cpu" and model.dtype == "auto"
        ranks = config.parallel.tensor_parallel_size
        quantization = fastest_quantization(checkpoint.architecture, ranks, instructions()) if is_wanted else "none"
    dtype = model.dtype
    if dtype == "auto":
        dtype = file_dtype if quantization == "none" else "bfloat16"
    if config.cache.kv_cache_dtype == "fp8" and device != "cuda":
        raise ConfigError(f"kv_cache_dtype fp8 is for GPUs, and the device is {device}: use bfloat16, or auto")
    if quantization == "none":
        kv_cache_dtype = config.cache.kv_cache_dtype
        return dtype, quantization, dtype if kv_cache_dtype == "auto" else kv_cache_dtype
    if device != "cpu":
        raise ConfigError(f"quantization {quantization} is for CPUs, and the device is {device}: use quantization none")
    if quantization == "gguf" and checkpoint.format != "gguf":
        raise ConfigError(f"quantization gguf needs a GGUF file, and the model is in {checkpoint.format}: use int8")
    if dtype == "float16":
        raise ConfigError(f"quantization {quantization} has no float16 activations: use dtype float32 or bfloat16")
    return dtype, quantization, "bfloat16" if config.cache.kv_cache_dtype == "auto" else config.cache.kv_cache_dtype


def fastest_quantization(architecture: Architecture, ranks: int, flags: Set[str]) -> Quantization:
    """Of a quantised GGUF on a CPU with these instructions.

    Tiles of AMX take one scale a row far better than one a group; vectors are faster with the file's own blocks.
    `benchmarks/README.md` has the figures.
    """
    attention_size = architecture.num_attention_heads * architecture.head_dim
    is_cut = any(size // ranks % GROUP for size in (attention_size, architecture.intermediate_size))
    return "int8" if is_cut or "amx_int8" in flags else "gguf"
