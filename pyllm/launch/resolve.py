"""Resolves settings: reads the model's description, and replaces every `auto` and None. Starts nothing.

Imports no torch: it asks the driver for cards, and chooses the precision before any process starts.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast, get_args

import msgspec

from pyllm.checkpoint.gguf_types import BLOCK_SIZES, FLOAT_TYPES
from pyllm.checkpoint.hub import Hub
from pyllm.checkpoint.huggingface import Probe
from pyllm.checkpoint.model_name import at_revision
from pyllm.checkpoint.quantization_config import QuantizationMethod
from pyllm.checkpoint.reader import read_checkpoint
from pyllm.checkpoint.types import Checkpoint
from pyllm.config.engine_settings import (
    SEQUENCES,
    CacheConfig,
    EngineConfig,
    KVCacheDtype,
    KVEventsConfig,
    SchedulerConfig,
    is_rust,
)
from pyllm.config.kv_transfer_settings import KVTransferConfig
from pyllm.config.lora_settings import lora_module
from pyllm.config.model_settings import Dtype, ModelConfig, Quantization
from pyllm.config.rank_coordinates import num_ranks
from pyllm.core.policy_plugins import find_policy
from pyllm.errors import ConfigError
from pyllm.families.rope import at_context
from pyllm.families.spec import ModelSpec, check_tensor_parallel
from pyllm.families.state_layout import checkpoint_tokens
from pyllm.launch.core_settings import settings_of_core
from pyllm.launch.cpu_threads import threads_of_each_rank
from pyllm.launch.memory_check import ELEMENT_BYTES, check_memory, default_kv_cache_bytes, memory_needed
from pyllm.launch.model_overrides import with_overrides
from pyllm.launch.probe_process import probe_model
from pyllm.machine.cpu_features import about, instructions
from pyllm.machine.cuda_driver import VisibleCard, visible_cards
from pyllm.machine.extras import GPU_PACKAGES, is_installed, missing_extra
from pyllm.machine.memory import host_memory
from pyllm.machine.processor import kernel_level, kernel_levels
from pyllm.recording import check_recording_path
from pyllm.supervision.flight_recorder import resolve_folder
from pyllm.workers.attention_backends import find_attention_backend
from pyllm.workers.model_limits import (
    check_cpu_layers,
    check_own_attention,
    check_states,
    check_supported,
    settings_of_encoder,
)
from pyllm.workers.sparse_attention.sparse_limits import check_sparse_attention

logger = logging.getLogger(__name__)

# Default tokens in a step. A CPU computes as many per second in small steps as in large ones, and a stream waits for
# each step that has prompts of other requests; `docs/performance.md` has the figures.
BATCHED_TOKENS = {"cuda": 2048, "cpu": 192}
# Cards with this much memory have room for more tokens and sequences: larger steps use all their multiprocessors.
LARGE_CARD_BYTES = 40 * 10**9  # A card of 40 GiB reports a little less than its name says.
LARGE_CARD_SEQUENCES, LARGE_CARD_BATCHED_TOKENS = 256, 8192
LONGEST_TEXT = 8192  # tokens of a text for an encoder, unless max_model_len says otherwise
OLDEST_BFLOAT16 = 80  # compute capability 8.0
SPECULATIVE_TOKENS = 5
# Matrices whose columns are split among ranks; a split cannot cut a quantised block.
CUT_BY_COLUMNS = ("attention.output.weight", "feed_forward.down.weight", "feed_forward.shared.down.weight")


def resolve_config(
    config: EngineConfig,
    probe: Probe = probe_model,
    list_cards: Callable[[], Sequence[VisibleCard]] = visible_cards,
    has_package: Callable[[str], bool] = is_installed,
    *,
    memory: int | None = None,
) -> tuple[EngineConfig, Checkpoint]:
    """Read the model's description and replace everything that is `auto`, None or a 0 that stands for a default.

    The default size of a KV cache on a CPU is part of `memory` bytes; None: of what is available.

    Raises:
        ConfigError: the model cannot be read, two settings conflict, or the memory is too small.
    """
    resolved, checkpoint = resolve_settings(config, probe, list_cards, has_package)
    num_threads = config.device.num_threads or threads_of_each_rank(config.parallel)
    resolved = msgspec.structs.replace(
        resolved, device=msgspec.structs.replace(resolved.device, num_threads=num_threads)
    )
    if config.parallel.distributed_executor_backend != "ray":  # with Ray, ranks use the memory of other machines
        check_memory(resolved, checkpoint)
        if resolved.device.device == "cpu" and resolved.cache.kv_cache_memory_bytes is None:
            if memory is None:
                memory = min((each.available for each in host_memory()), default=0)
            size = default_kv_cache_bytes(resolved, checkpoint, memory)
            cache = msgspec.structs.replace(resolved.cache, kv_cache_memory_bytes=size)
            resolved = msgspec.structs.replace(resolved, cache=cache)
    return resolved, checkpoint


def resolve_settings(
    config: EngineConfig,
    probe: Probe = probe_model,
    list_cards: Callable[[], Sequence[VisibleCard]] = visible_cards,
    has_package: Callable[[str], bool] = is_installed,
) -> tuple[EngineConfig, Checkpoint]:
    """Resolve settings as `resolve_config`, but without threads, and without reading the memory."""
    model = config.model
    checkpoint = read_checkpoint(
        at_revision(model.model, model.revision, "revision"),
        Hub(cache_dir=model.download_dir or None, token=model.hf_token or None),
        at_revision(model.tokenizer, model.tokenizer_revision, "tokenizer_revision"),
        implementation=model.model_impl,
        probe=probe,
        overrides=model.hf_overrides,
        has_dummy_weights=model.load_format == "dummy",
    )
    if model.revision:
        checkpoint = msgspec.structs.replace(checkpoint, name=model.model)
    checkpoint = with_overrides(checkpoint, model)
    spec = checkpoint.spec
    config, max_model_len = _with_length(config, checkpoint)
    _check_transformers(config, checkpoint)
    if checkpoint.skipped and spec.transformers is None:
        listed = ", ".join(checkpoint.skipped[:5]) + (", ..." if len(checkpoint.skipped) > 5 else "")
        logger.warning(
            "%d tensors are not loaded, as its text model has none such: %s", len(checkpoint.skipped), listed
        )
    cards = list_cards()
    device = _resolve_device(config, cards, has_package)
    ranks = num_ranks(config.parallel)
    cores = config.parallel.data_parallel_size
    if config.parallel.distributed_executor_backend == "ray":
        if not has_package("ray"):
            missing = missing_extra("ray", "ray")
            raise ConfigError(f"distributed_executor_backend is ray, and {missing}, here and on every node")
    elif device == "cuda" and len(cards) < cores * ranks:
        need = f"{ranks} rank(s) need as many cards"
        if cores > 1:
            need = f"{cores} cores (data_parallel_size) of {ranks} rank(s) need {cores * ranks} cards"
        raise ConfigError(f"device cuda: {need}, {len(cards)} are visible; use --device cpu")
    cards = cards[: cores * ranks] if device == "cuda" else ()
    check_tensor_parallel(spec, config.parallel.tensor_parallel_size, by_expert=config.parallel.enable_expert_parallel)
    _check_stages(config, checkpoint)
    if ranks > 1 and config.parallel.distributed_executor_backend == "uni":
        raise ConfigError(f"the uni executor runs one rank, not {ranks}: use distributed_executor_backend mp")
    _check_cache(config.cache)
    _check_adapters(config)
    _check_events(config)
    find_policy(config.scheduler.scheduling_policy)
    find_attention_backend(config.device.attention_backend)
    _check_kernels(config, device)
    recording = _absolute(config.scheduler.scheduler_recording)
    log_file = _absolute(config.log.log_config_file)
    crashes = resolve_folder(config.recovery.flight_recorder_dir)
    _check_model(config, spec, device)
    dtype, quantization, kv_cache_dtype = resolve_precision(config, checkpoint, device, cards)
    if checkpoint.quantization and quantization == "none":
        logger.info("the weights, which are %s, are dequantised to %s on %s", checkpoint.quantization, dtype, device)
    checkpoint = msgspec.structs.replace(checkpoint, spec=at_context(spec, max_model_len))
    resolved = msgspec.structs.replace(
        config,
        model=msgspec.structs.replace(
            config.model,
            served_model_name=tuple(dict.fromkeys(config.model.served_model_name)) or (checkpoint.name,),
            dtype=dtype,
            quantization=quantization,
            max_model_len=max_model_len,
            hf_token="",  # No longer needed, and crash records contain the configuration.
        ),
        cache=msgspec.structs.replace(
            config.cache,
            kv_cache_dtype=kv_cache_dtype,
            enable_prefix_caching=config.cache.enable_prefix_caching and not spec.is_bidirectional,
            kv_cache_dir=_absolute(config.cache.kv_cache_dir),
            state_checkpoint_tokens=_checkpoint_tokens(config.cache, spec, kv_cache_dtype),
        ),
        kv_transfer=msgspec.structs.replace(config.kv_transfer, kv_transfer_config=_transfer(config)),
        scheduler=msgspec.structs.replace(
            config.scheduler,
            scheduler_recording=recording,
            **_step_limits(config.scheduler, device, cards, max_model_len if spec.is_bidirectional else 0),
            num_speculative_tokens=_speculative_tokens(config, checkpoint, device),
        ),
        device=msgspec.structs.replace(config.device, device=device),
        log=msgspec.structs.replace(config.log, log_config_file=log_file),
        recovery=msgspec.structs.replace(config.recovery, flight_recorder_dir=crashes),
    )
    for index in range(cores):
        if path := settings_of_core(resolved, index).scheduler.scheduler_recording:
            check_recording_path(Path(path))
    return resolved, checkpoint


def _with_length(config: EngineConfig, checkpoint: Checkpoint) -> tuple[EngineConfig, int]:
    """The length of a sequence, and a copy with what the steps of an encoder need."""
    spec = checkpoint.spec
    length, longest = config.model.max_model_len or _usual_length(checkpoint), spec.max_position_embeddings
    if length > longest:
        raise ConfigError(f"max_model_len {length} is more than the model's context of {longest} tokens")
    if not spec.is_bidirectional:
        return config, length
    config, changed = settings_of_encoder(config, length)
    if changed:
        text = "%s computes whole texts of up to %d tokens in a step, and has no prefix cache, in spite of %s"
        logger.warning(text, spec.architecture, length, ", ".join(changed))
    return config, length


def _usual_length(checkpoint: Checkpoint) -> int:
    """The context where the user names none. All of an encoder's is one step, whose memory it would take."""
    longest = checkpoint.spec.max_position_embeddings
    longest = min(longest, checkpoint.embedding.max_seq_length or longest)
    if not checkpoint.spec.is_bidirectional or longest <= LONGEST_TEXT:
        return longest
    logger.warning("texts of up to %d tokens, of %d that the model can: set max_model_len", LONGEST_TEXT, longest)
    return LONGEST_TEXT


def _check_model(config: EngineConfig, spec: ModelSpec, device: str) -> None:
    """Refuse features of the model that are not supported, alone or with a setting."""
    check_sparse_attention(config, spec, device)
    check_supported(spec)
    check_states(config, spec, device)
    check_own_attention(config, spec)
    check_cpu_layers(config, spec, device)


def _checkpoint_tokens(cache: CacheConfig, spec: ModelSpec, kv_cache_dtype: str) -> int:
    """Tokens between two checkpoints of a prompt's states; 0 for a model without states."""
    if not spec.has_states:
        return 0
    chosen = cache.state_checkpoint_tokens
    return checkpoint_tokens(spec, ELEMENT_BYTES[kv_cache_dtype]) if chosen is None else chosen


def _absolute(path: str) -> str:
    """The absolute path, for processes in other folders; an empty one stays empty."""
    return path and str(Path(path).expanduser().absolute())


def _resolve_device(config: EngineConfig, cards: Sequence[VisibleCard], has_package: Callable[[str], bool]) -> str:
    """The device `cpu` or `cuda`. On a machine with cards, auto is cpu where a package for them is missing.

    Raises:
        ConfigError: cuda or Triton was asked for, and a package for it is missing.
    """
    device = config.device.device
    is_elsewhere = config.parallel.distributed_executor_backend == "ray"
    missing = "" if is_elsewhere else next((name for name in GPU_PACKAGES if not has_package(name)), "")
    if device == "cuda" and missing:
        raise ConfigError(f"the device is cuda, and {missing_extra('gpu', missing)}")
    for name in ("kernel_backend", "attention_backend"):  # whose interpreter runs on a CPU
        if missing and getattr(config.device, name) == "triton":
            raise ConfigError(f"{name} triton: {missing_extra('gpu', missing)}")
    if device != "auto":
        return device
    if cards and missing:
        logger.warning(
            "%d card(s) are visible, and %s; this runs on the CPU", len(cards), missing_extra("gpu", missing)
        )
    return "cuda" if cards and not missing else "cpu"


def _step_limits(scheduler: SchedulerConfig, device: str, cards: Sequence[VisibleCard], longest: int) -> dict[str, int]:
    """Sequences and tokens of a step: as set, else by the memory of the smallest card, and `longest` at least."""
    is_large = bool(cards) and min(card.memory_bytes for card in cards) >= LARGE_CARD_BYTES
    sequences = scheduler.max_num_seqs or (LARGE_CARD_SEQUENCES if is_large else SEQUENCES)
    usual_tokens = LARGE_CARD_BATCHED_TOKENS if is_large else BATCHED_TOKENS[device]
    return {
        "max_num_seqs": sequences,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens or max(usual_tokens, sequences, longest),
    }


def _speculative_tokens(config: EngineConfig, checkpoint: Checkpoint, device: str) -> int:
    """Draft tokens of a step. The default is 0, unless drafts leave results bitwise equal, as with the Rust kernels."""
    if (chosen := config.scheduler.num_speculative_tokens) is not None:
        return chosen
    is_exact = checkpoint.spec.transformers is None and is_rust(config.device, device)
    return SPECULATIVE_TOKENS if is_exact and not checkpoint.embedding.is_only_use else 0


def _check_transformers(config: EngineConfig, checkpoint: Checkpoint) -> None:
    """Refuse settings that a transformers model does not support, and warn of the guarantees that it lacks."""
    spec = checkpoint.spec
    if spec.transformers is None:
        return
    promises = {
        "batch_invariant": config.device.batch_invariant,
        "num_speculative_tokens": config.scheduler.num_speculative_tokens,
        "enable_expert_parallel": config.parallel.enable_expert_parallel,
    }
    if asked := [name for name, is_asked in promises.items() if is_asked]:
        raise ConfigError(
            f"{' and '.join(asked)} is not possible where transformers computes the model: leave it out, or use "
            "--model-impl native"
        )
    logger.warning(
        "transformers %s computes this model: eagerly and without drafts; numbers depend on the batch in their last "
        "bits, so a stream that goes on after a crash may have other tokens than without it",
        spec.transformers.version,
    )
    if checkpoint.skipped:
        listed = ", ".join(checkpoint.skipped[:5])
        logger.warning("%d tensors are not loaded, as it has no such parameter: %s", len(checkpoint.skipped), listed)


def _check_stages(config: EngineConfig, checkpoint: Checkpoint) -> None:
    """Refuse more pipeline stages than layers, and any stages for a transformers model."""
    stages, spec = config.parallel.pipeline_parallel_size, checkpoint.spec
    if stages == 1:
        return
    if spec.transformers is not None:
        raise ConfigError(
            f"pipeline_parallel_size {stages} is not possible where transformers computes the model: use "
            "tensor_parallel_size"
        )
    if stages > len(spec.layers):
        raise ConfigError(f"pipeline_parallel_size {stages} is more than the model's {len(spec.layers)} layers")


def _check_kernels(config: EngineConfig, device: str) -> None:
    """Refuse instructions that the processor lacks, and backends that `batch_invariant` is not promised for."""
    _instruction_set(config)
    chosen = config.device
    if not chosen.batch_invariant:
        return
    ours = "triton" if device == "cuda" else "cpu"
    for name, value in (("kernel_backend", chosen.kernel_backend), ("attention_backend", chosen.attention_backend)):
        if value not in {"auto", ours}:
            raise ConfigError(f"batch_invariant on {device} is what {ours} promises, not {name} {value}: leave it auto")


def _check_adapters(config: EngineConfig) -> None:
    """Refuse settings of adapters that cannot work; whether there are such adapters, the cores find out."""
    lora = config.lora
    if not lora.enable_lora:
        if given := [name for name in ("lora_modules", "lora_folder", "lora_repositories") if getattr(lora, name)]:
            raise ConfigError(f"{', '.join(given)}: adapters are served with enable_lora alone; set it, too")
        return
    names = [lora_module(text).name for text in lora.lora_modules]
    if twice := [name for name, count in Counter([*names, *config.model.served_model_name]).items() if count > 1]:
        raise ConfigError(f"lora_modules: {twice[0]!r:.200} is the name of two models; give each its own")
    if lora.max_cpu_loras is not None and lora.max_cpu_loras < lora.max_loras:
        text = f"max_cpu_loras is {lora.max_cpu_loras}, and those of the device are copies of them: {lora.max_loras}"
        raise ConfigError(f"{text} (max_loras) or more are needed")
    is_here = config.parallel.distributed_executor_backend != "ray"
    if lora.lora_folder and is_here and not Path(lora.lora_folder).is_dir():
        raise ConfigError(f"lora_folder: there is no folder {lora.lora_folder}")


def _check_cache(cache: CacheConfig) -> None:
    if cache.block_size & (cache.block_size - 1):
        raise ConfigError(f"block_size must be a power of two, got {cache.block_size}")
    if not cache.enable_prefix_caching and (cache.max_pinned_blocks or cache.enable_kv_cache_events):
        raise ConfigError(
            "max_pinned_blocks and enable_kv_cache_events are about the prefix cache: enable_prefix_caching"
        )


def _transfer(config: EngineConfig) -> KVTransferConfig | None:
    """The KV connector of the settings; `StoreConnector` where only a store is given.

    Raises:
        ConfigError: there is no such connector, or no prefix cache whose blocks it moves; or a size without a folder.
    """
    cache, transfer = config.cache, config.kv_transfer.kv_transfer_config
    if cache.kv_cache_disk_size != CacheConfig().kv_cache_disk_size and not cache.kv_cache_dir:
        raise ConfigError("kv_cache_disk_size is how much a folder may take, and none is given: kv_cache_dir")
    if transfer is None and (cache.kv_cache_dir or cache.kv_cache_redis_url):
        transfer = KVTransferConfig(kv_connector="StoreConnector")
    if transfer is None:
        return None
    from pyllm.kv_transfer import check_connector  # Imported only where it is needed.

    check_connector(transfer)
    if not cache.enable_prefix_caching:
        raise ConfigError(
            "kv_transfer_config, kv_cache_dir and kv_cache_redis_url are about blocks of the prefix cache: "
            "enable_prefix_caching"
        )
    if cache.kv_cache_dir and config.parallel.distributed_executor_backend == "ray":
        logger.warning(
            "kv_cache_dir %s must be one folder for all nodes with ranks and for this machine, on a shared file "
            "system: with a folder on each node no block is found again; kv_cache_redis_url needs none",
            cache.kv_cache_dir,
        )
    return transfer


def _check_events(config: EngineConfig) -> None:
    events = config.kv_events
    if events == KVEventsConfig():
        return
    if not config.cache.enable_kv_cache_events:
        raise ConfigError("kv_events_... are about events that enable_kv_cache_events keeps: set it, too")
    if not events.kv_events_endpoint:
        raise ConfigError("kv_events_... are about a publisher: give it an address, kv_events_endpoint")


def resolve_precision(
    config: EngineConfig, checkpoint: Checkpoint, device: str, cards: Sequence[VisibleCard] = ()
) -> tuple[Dtype, Quantization, KVCacheDtype]:
    """Resolve `auto` in dtype, quantization and KV cache dtype. A dtype that is set is a minimum of precision.

    Quantised weights have no dtype of their own: the floats beside them, and those made of them on a GPU, have two
    bytes.

    Raises:
        ConfigError: two of them conflict, or one conflicts with the device or the model's format.
    """
    model, file_dtype = config.model, cast(Dtype, checkpoint.spec.dtype)
    quantization, own = model.quantization, cast(QuantizationMethod | None, checkpoint.quantization or None)
    if quantization in get_args(QuantizationMethod) and quantization != own:
        found = f"quantised by {own}" if own else "not quantised like this"
        raise ConfigError(f"quantization {quantization} is not the model's, which is {found}: use quantization auto")
    if quantization == "auto" and own is not None:
        quantization = own if model.dtype == "auto" else "none"
    elif quantization == "auto":
        ranks = config.parallel.tensor_parallel_size
        if model.dtype != "auto" or not _is_quantised_gguf(checkpoint):
            quantization = "none"
        elif device == "cpu":
            quantization = fastest_quantization(checkpoint, ranks, _instruction_set(config))
        else:
            quantization = "none" if _cuts_blocks(checkpoint, ranks) else "gguf"
    dtype = model.dtype
    if dtype == "auto":
        is_shortened = quantization != "none" or (device == "cuda" and _is_quantised_gguf(checkpoint))
        has_bfloat16 = all(card.capability >= OLDEST_BFLOAT16 for card in cards)
        dtype = ("bfloat16" if has_bfloat16 else "float16") if is_shortened else file_dtype
    if config.cache.kv_cache_dtype == "fp8" and device != "cuda":
        raise ConfigError(f"kv_cache_dtype fp8 is for GPUs, and the device is {device}: use bfloat16, or auto")
    if quantization == "none":
        kv_cache_dtype = config.cache.kv_cache_dtype
        return dtype, quantization, dtype if kv_cache_dtype == "auto" else kv_cache_dtype
    if device != "cpu" and quantization not in {own, "gguf"}:
        raise ConfigError(f"quantization {quantization} is for CPUs, and the device is {device}: use quantization none")
    if quantization == "gguf" and checkpoint.format != "gguf":
        raise ConfigError(f"quantization gguf needs a GGUF file, and the model is in {checkpoint.format}: use int8")
    usual_dtype = "bfloat16" if device == "cpu" else dtype
    return dtype, quantization, usual_dtype if config.cache.kv_cache_dtype == "auto" else config.cache.kv_cache_dtype


def cpu_memory_needed(checkpoint: Checkpoint) -> int:
    """Bytes that a model takes on a CPU with default settings, without its KV cache.

    Raises:
        ConfigError: as `resolve_precision`.
    """
    dtype, quantization, _ = resolve_precision(EngineConfig(), checkpoint, "cpu")
    return memory_needed(EngineConfig(model=ModelConfig(dtype=dtype, quantization=quantization)), checkpoint)


def fastest_quantization(checkpoint: Checkpoint, ranks: int, instruction_set: str) -> Quantization:
    """The fastest quantization of a quantised GGUF file on a CPU with these instructions.

    AMX tiles are far faster with one scale per row than per group; vectors are faster with the file's own blocks.
    `docs/performance.md` has the figures. MXFP4 weights are mostly experts, of which a step reads few: they stay 4-bit.
    """
    has_mxfp4 = any(entry.source.type == "MXFP4" for entry in checkpoint.tensors)
    return "int8" if _cuts_blocks(checkpoint, ranks) or (instruction_set == "amx" and not has_mxfp4) else "gguf"


def _instruction_set(config: EngineConfig) -> str:
    """The instructions of the kernels on a CPU."""
    chosen, flags = config.device.instruction_set, instructions()
    if chosen == "auto":
        return kernel_level(flags, about().get("vendor_id", ""))
    if config.parallel.distributed_executor_backend != "ray" and chosen not in (levels := kernel_levels(flags)):
        raise ConfigError(f"instruction_set {chosen}: this processor has {', '.join(levels)}")
    return chosen


def _is_quantised_gguf(checkpoint: Checkpoint) -> bool:
    return checkpoint.format == "gguf" and any(entry.source.type not in FLOAT_TYPES for entry in checkpoint.tensors)


def _cuts_blocks(checkpoint: Checkpoint, ranks: int) -> bool:
    """Whether a rank's share of some matrix begins or ends within a quantised block."""
    cut = [entry for entry in checkpoint.tensors if entry.name.endswith(CUT_BY_COLUMNS)]
    return any(entry.shape[1] // ranks % BLOCK_SIZES[entry.source.type] for entry in cut)
