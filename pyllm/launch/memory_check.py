"""Checks before loading whether a model fits into the host's memory. Knows no device but the CPU."""

import logging
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from pyllm.checkpoint.gguf_types import BLOCK_BYTES, BLOCK_SIZES, FLOAT_TYPES, REQUANTISED_TYPES
from pyllm.checkpoint.types import Checkpoint
from pyllm.config.engine_settings import MIN_CPU_KV_CACHE_BYTES, EngineConfig
from pyllm.config.rank_coordinates import num_ranks
from pyllm.errors import ConfigError
from pyllm.families.kv_layout import kv_groups, kv_tokens_per_plane, plane_heads
from pyllm.families.parameter_shapes import num_parameters, parameters_of_layer
from pyllm.families.spec import FeedForwardSpec, ModelSpec
from pyllm.families.stage_layout import PipelineStage, split_into_stages
from pyllm.families.state_layout import state_bytes
from pyllm.families.tensors import FileTensor, TensorEntry
from pyllm.machine.memory import Memory, host_memory

logger = logging.getLogger(__name__)

ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1}
# Bytes of 256 packed weights, for types that have fewer in the file (`Encoding` in kernels/src/linear/format.rs, and
# `Layout` in kernels/src/linear/ggml/grid.rs).
_PACKED_BYTES = {"Q2_K": 164, "Q3_K": 146, "Q4_K": 148, "Q5_K": 180, "IQ4_XS": 138}
_PACKED_BYTES |= {"IQ1_S": 54, "IQ1_M": 58, "IQ2_XXS": 70, "IQ2_XS": 78, "IQ3_XXS": 102}
# Of 32 elements of a GGUF type on a GPU; IQ1 to IQ3 are as Q8_0, and others are floats.
_GPU_BYTES = {"Q4_0": 20, "Q4_1": 20, "Q8_0": 34, "Q5_0": 34, "IQ4_NL": 34}
# A process that has imported torch, with its buffers; counted once per rank and once for all other processes.
_PROCESS_BYTES = 256 << 20


def weights_bytes(engine: EngineConfig, checkpoint: Checkpoint) -> int:
    """Bytes of the loaded weights, on all ranks together."""
    spec = checkpoint.spec
    element_bytes = ELEMENT_BYTES[engine.model.dtype]
    shared = [entry for entry in checkpoint.tensors if entry.name == "embedding.weight"]
    if engine.parallel.pipeline_parallel_size == 1 or not spec.tie_word_embeddings:
        shared = []  # Otherwise the last stage has a copy of the embedding as its head.
    num_shared = sum(math.prod(entry.shape) for entry in shared)
    names = _float_matrices(spec)
    num_floats = sum(math.prod(entry.shape) for entry in checkpoint.tensors if entry.name in names)
    others = [entry for entry in checkpoint.tensors if entry.name not in names]
    on_cpu = engine.device.device == "cpu"
    match engine.model.quantization:
        case "gguf":
            sources = (*_sources(others), *(entry.source for entry in shared))
            kept_bytes = _kept_bytes if on_cpu else _kept_bytes_on_gpu
            return sum(kept_bytes(source, element_bytes) for source in sources) + num_floats * element_bytes
        case "int8":
            return num_parameters(spec) + num_shared + num_floats * (element_bytes - 1)
        case "none":
            return (num_parameters(spec) + num_shared) * element_bytes
        case _:
            quantised = sum(_quantised_bytes(entry, element_bytes, on_cpu) for entry in (*others, *shared))
            return quantised + num_floats * element_bytes


def memory_needed(engine: EngineConfig, checkpoint: Checkpoint) -> int:
    """Bytes that the weights and processes of a core take on a CPU, without its KV cache."""
    processes = _PROCESS_BYTES * (num_ranks(engine.parallel) + 1)
    if checkpoint.spec.is_bidirectional:  # whose steps may be of thousands of tokens
        processes += num_ranks(engine.parallel) * activation_bytes(engine, checkpoint)
    return weights_bytes(engine, checkpoint) + processes + adapter_bytes(engine, checkpoint)


def adapter_bytes(engine: EngineConfig, checkpoint: Checkpoint) -> int:
    """Bytes of LoRA adapters of the largest rank, on the device and on the host, as many as may be there.

    Ranks may have parts of a matrix or all of it: each rank counts the whole.
    """
    spec, lora = checkpoint.spec, engine.lora
    if not lora.enable_lora:
        return 0
    shapes = [
        shape
        for layer in spec.layers
        for name, shape in parameters_of_layer(spec, layer).items()
        if len(shape) == 2 and ".experts." not in name
    ]
    numbers = (lora.num_slots + lora.num_on_host) * lora.max_lora_rank * sum(map(sum, shapes))
    return engine.parallel.tensor_parallel_size * numbers * ELEMENT_BYTES[engine.model.dtype]


def kv_bytes(engine: EngineConfig, checkpoint: Checkpoint, num_tokens: int) -> int:
    """KV cache bytes of a sequence of `num_tokens` tokens, on all ranks together, with two states of it.

    One is its own, the other the checkpoint of its last full block.
    Every pipeline stage counts as much as the one that needs most, since that one limits the number of tokens.
    """
    spec, ranks = checkpoint.spec, engine.parallel.tensor_parallel_size
    vector = math.prod(plane_heads(spec, ranks)) * ranks
    element_bytes = ELEMENT_BYTES[engine.cache.kv_cache_dtype]
    context = engine.model.max_model_len or spec.max_position_embeddings
    groups = kv_groups(spec, context, not engine.cache.disable_hybrid_kv_cache_manager, ranks)
    stages = _stages(engine, checkpoint)
    kept = len(stages) * max(kv_tokens_per_plane(stage.groups(groups), num_tokens) for stage in stages)
    states = 2 * ranks * state_bytes(spec, ranks, range(len(spec.layers)))
    return spec.attention.cached_vectors * kept * vector * element_bytes + states


def _stages(engine: EngineConfig, checkpoint: Checkpoint) -> tuple[PipelineStage, ...]:
    spec = checkpoint.spec
    num_stages, tied = engine.parallel.pipeline_parallel_size, spec.tie_word_embeddings
    return split_into_stages(checkpoint.tensors, len(spec.layers), num_stages, tied, spec.tied_layers)


def kv_bytes_per_token(engine: EngineConfig, checkpoint: Checkpoint) -> int:
    """KV cache bytes per token, on all ranks together, averaged over a sequence of the whole context."""
    context = engine.model.max_model_len or checkpoint.spec.max_position_embeddings
    return -(-kv_bytes(engine, checkpoint, context) // context)


def activation_bytes(engine: EngineConfig, checkpoint: Checkpoint) -> int:
    """Estimated bytes of activations and logits on each rank, in the largest step. All layers reuse the same memory.

    On a CPU these are part of `_PROCESS_BYTES`, but for an encoder. A worker on a GPU measures them when it starts.
    """
    spec, ranks = checkpoint.spec, engine.parallel.tensor_parallel_size
    heads = max((attention.query_size + attention.kv_size for attention in spec.attentions), default=0)
    # Input, residual and normed input; query, key, value and the output of attention; gate, up and their product; both
    # per-layer inputs.
    streams = 3 if spec.streams is None else 3 * spec.streams.count
    widths = streams * spec.hidden_size + 2 * heads // ranks + 2 * spec.per_layer_features
    feed_forwards = (layer.feed_forward for layer in spec.layers if layer.feed_forward is not None)
    feed_forward = max(map(_features, feed_forwards), default=0) or 4 * spec.hidden_size
    elements = engine.scheduler.max_num_batched_tokens * (widths + 3 * feed_forward // ranks)
    return elements * ELEMENT_BYTES[engine.model.dtype] + 4 * engine.scheduler.max_num_seqs * spec.vocab_size


def table_bytes_per_token(engine: EngineConfig, checkpoint: Checkpoint) -> int:
    """Bytes of RoPE and block tables per token of the context, used or not, on all ranks together."""
    rotations = 4 * sum(rope.rotary_size for rope in checkpoint.spec.ropes)
    context = engine.model.max_model_len or checkpoint.spec.max_position_embeddings
    hybrid, ranks = not engine.cache.disable_hybrid_kv_cache_manager, engine.parallel.tensor_parallel_size
    groups = kv_groups(checkpoint.spec, context, hybrid, ranks)
    block_tables = -(-4 * len(groups) * engine.scheduler.max_num_seqs // engine.cache.block_size)
    return (rotations + block_tables) * num_ranks(engine.parallel)


class _ModelBytes(NamedTuple):
    """Bytes of all cores together, without KV caches. If `is_mapped`, the cores map one file of weights."""

    weights: int
    processes: int
    tables: int
    is_mapped: bool


def _model_bytes(engine: EngineConfig, checkpoint: Checkpoint) -> _ModelBytes:
    cores = engine.parallel.data_parallel_size
    context = engine.model.max_model_len or checkpoint.spec.max_position_embeddings
    weights = weights_bytes(engine, checkpoint)
    is_mapped = _are_mapped(engine, checkpoint, weights)
    processes = cores * (memory_needed(engine, checkpoint) - weights)
    tables = cores * context * table_bytes_per_token(engine, checkpoint)
    return _ModelBytes(weights if is_mapped else cores * weights, processes, tables, is_mapped)


def default_kv_cache_bytes(engine: EngineConfig, checkpoint: Checkpoint, available: int) -> int:
    """The default KV cache of each rank on a CPU: half of the memory that the model leaves of `available` bytes.

    At most as much as `max_num_seqs` sequences of the whole context need, and at least 512 MiB.
    """
    needed = _model_bytes(engine, checkpoint)
    room = available - needed.weights - needed.processes - needed.tables
    context = engine.model.max_model_len or checkpoint.spec.max_position_embeddings
    most = engine.scheduler.max_num_seqs * kv_bytes(engine, checkpoint, context)
    size = min(room // 2 // engine.parallel.data_parallel_size, most) // num_ranks(engine.parallel)
    return max(MIN_CPU_KV_CACHE_BYTES, size >> 20 << 20)


def resident_bytes(engine: EngineConfig, checkpoint: Checkpoint) -> int:
    """Bytes of host memory that resolved cores take with their KV caches full; on GPUs those of their processes."""
    if engine.device.device != "cpu":
        return _PROCESS_BYTES * (num_ranks(engine.parallel) + 1) * engine.parallel.data_parallel_size
    model, ranks = _model_bytes(engine, checkpoint), num_ranks(engine.parallel) * engine.parallel.data_parallel_size
    return model.weights + model.processes + model.tables + ranks * (engine.cache.kv_cache_memory_bytes or 0)


def check_memory(engine: EngineConfig, checkpoint: Checkpoint, read: Callable[[], list[Memory]] = host_memory) -> None:
    """Refuse a model whose cores do not fit into a CPU's memory, and warn of a KV cache that cannot be filled.

    Weights mapped from disk need not fit, but a warning says that they are slow then; all cores map the same ones. A KV
    cache larger than the whole memory is refused, too: the kernel would not map it.

    Raises:
        ConfigError: the memory is too small; the text has the needed and the available bytes.
    """
    if engine.device.device != "cpu":
        return
    cores = engine.parallel.data_parallel_size
    ranks = cores * num_ranks(engine.parallel)
    weights, processes, tables, is_mapped = _model_bytes(engine, checkpoint)
    total = weights + processes
    cache = (engine.cache.kv_cache_memory_bytes or MIN_CPU_KV_CACHE_BYTES) * ranks
    context = engine.model.max_model_len or checkpoint.spec.max_position_embeddings
    tables_per_token = cores * table_bytes_per_token(engine, checkpoint)
    for memory in read():
        beside = memory.available - total  # the weights and the processes
        of_cores = f" of {cores} cores" if cores > 1 else ""
        needed = f"{_gigabytes(weights)} for weights and about {_gigabytes(processes)} for processes{of_cores}"
        if is_mapped and beside < tables <= beside + weights:
            logger.warning(
                "%s has %s available, and the model takes %s: its weights are read from disk again as they are needed, "
                "and answers are slow",
                memory.owner,
                _gigabytes(memory.available),
                needed,
            )
            beside += weights
        room = beside - tables
        if 0 < beside < tables:
            raise ConfigError(
                f"the tables of a context of {context} tokens take {_gigabytes(tables)} beside "
                f"{needed}, and {memory.owner} has {_gigabytes(memory.available)} available: set --max-model-len "
                f"{beside // tables_per_token} or less"
            )
        if room < 0:
            raise ConfigError(
                f"the model needs {needed}, and {memory.owner} has {_gigabytes(memory.available)} available: free "
                f"some, {'lower --data-parallel-size, ' if cores > 1 else ''}or use a smaller model, or a GGUF of it "
                "with fewer bits"
            )
        if engine.cache.kv_cache_memory_bytes is not None and cache > memory.total:
            each = f" on each of {ranks} ranks" if ranks > 1 else ""
            raise ConfigError(
                f"a KV cache of {_gigabytes(cache // ranks)}{each} (--kv-cache-memory-bytes) is more than the "
                f"{_gigabytes(memory.total)} of memory that {memory.owner} has: set --kv-cache-memory-bytes "
                f"{room // ranks} or less"
            )
        if room < cache:
            logger.warning(
                "%s has %s available: beside %s, a KV cache for %d tokens fits, and not the %d of %s; set "
                "--kv-cache-memory-bytes %d",
                memory.owner,
                _gigabytes(memory.available),
                needed,
                room // kv_bytes_per_token(engine, checkpoint),
                cache // kv_bytes_per_token(engine, checkpoint),
                _gigabytes(cache),
                room // ranks,
            )


def _are_mapped(engine: EngineConfig, checkpoint: Checkpoint, weights: int) -> bool:
    """Whether packed weights are mapped from a file in the cache folder; memory then holds only the pages in use.

    The worker decides by the same rule (`workers/loaders/packed_cache.py`).
    """
    file_bytes = sum(source.num_bytes for source in _sources(checkpoint.tensors))
    is_packed = engine.device.kernel_backend in {"auto", "cpu"}
    are_floats = engine.model.quantization == "none" or any(
        entry.source.type == "F8_E4M3" for entry in checkpoint.tensors
    )
    grows = are_floats and weights > 1.25 * file_bytes
    return is_packed and not grows and weights <= engine.model.packed_cache_size


def _float_matrices(spec: ModelSpec) -> set[str]:
    """The matrices that are loaded as floats whatever the file has: those of each head of latent attention."""
    layers = [index for index, layer in enumerate(spec.layers) if layer.attention and layer.attention.latent]
    return {f"layers.{index}.attention.{part}.weight" for index in layers for part in ("key", "value")}


def _sources(entries: Iterable[TensorEntry]) -> list[FileTensor]:
    """The tensors that weights are read from, each once: several parameters or experts may share one."""
    return list({(entry.source.file, entry.source.offset): entry.source for entry in entries}.values())


def _kept_bytes_on_gpu(source: FileTensor, element_bytes: int) -> int:
    """Bytes of a loaded GGUF tensor on a GPU, in the format that the Triton linears have for it."""
    if len(source.shape) == 1:
        return source.num_bytes
    kind = REQUANTISED_TYPES.get(source.type, source.type)
    others = 34 if kind.startswith(("IQ1", "IQ2", "IQ3")) else 32 * element_bytes
    return math.prod(source.shape) * _GPU_BYTES.get(kind, others) // 32


def _kept_bytes(source: FileTensor, element_bytes: int) -> int:
    """Bytes of a loaded GGUF tensor on a CPU: packed blocks, of another type where its own has no kernel, or floats."""
    if len(source.shape) == 1:
        return source.num_bytes
    if source.type in FLOAT_TYPES:
        return math.prod(source.shape) * element_bytes
    if (kind := REQUANTISED_TYPES.get(source.type)) is not None:
        return math.prod(source.shape) * BLOCK_BYTES[kind] // BLOCK_SIZES[kind]
    return math.prod(source.shape) * _PACKED_BYTES.get(source.type, 0) // 256 or source.num_bytes


def _quantised_bytes(entry: TensorEntry, element_bytes: int, on_cpu: bool) -> int:
    """Bytes of a loaded matrix of a quantised folder, in the format that `workers/loaders/quantised.py` chooses."""
    count, quantised = math.prod(entry.shape), entry.quantised
    if quantised is not None and entry.source.type == "F8_E4M3" and not on_cpu:
        return count
    if quantised is None or entry.source.type == "F8_E4M3" or (quantised.layout == "mxfp4" and not on_cpu):
        return count * element_bytes
    if quantised.layout == "mxfp4":
        return count * 17 // 32
    columns, group = entry.shape[1], quantised.block[1]
    if columns % 32:
        return count * (1 if quantised.bits == 8 and group >= columns else element_bytes)
    if quantised.bits == 8 or quantised.groups is not None or (group % 32 and group < columns):
        return count * 34 // 32
    return count * (18 if quantised.zeros is None and on_cpu else 20) // 32


def _features(feed_forward: FeedForwardSpec) -> int:
    """Intermediate features of a feed-forward layer, summed over the experts that a token uses."""
    routing = feed_forward.routing
    if routing is None:
        return feed_forward.size
    return feed_forward.size * routing.active + (0 if routing.shared is None else routing.shared.size)


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB"
