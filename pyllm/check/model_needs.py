"""Memory that a model needs with given settings, and the contexts and numbers of sequences that fit beside it.

Works from the checkpoint's description; loads no weights. Uses the same rules as a server that starts.
"""

from collections.abc import Sequence

import msgspec

from pyllm.checkpoint.types import Checkpoint
from pyllm.config.engine_settings import EngineConfig
from pyllm.config.rank_coordinates import num_ranks
from pyllm.families.parameter_shapes import num_parameters
from pyllm.launch.memory_check import (
    activation_bytes,
    default_kv_cache_bytes,
    kv_bytes,
    kv_bytes_per_token,
    memory_needed,
    table_bytes_per_token,
)
from pyllm.launch.memory_check import weights_bytes as weights_of

# Contexts for which the report gives the number of sequences, up to the model's own.
CONTEXTS = (1024, 4096, 16384, 65536, 262144)


class Fit(msgspec.Struct, frozen=True):
    """Sequences of `context` tokens that run at once: with the cache as set, and with one that takes all memory."""

    context: int
    sequences: int
    most_sequences: int


class ModelNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """The needs of a model. Bytes are sums over ranks, but `activation_bytes` and `memory_bytes` are per card or host.

    `room_bytes` is the memory left for a KV cache; negative where the model does not fit. `longest_context` is the
    longest that a single sequence can have in the cache as it is set.
    """

    name: str
    format: str
    architecture: str
    parameters: int
    device: str
    dtype: str
    quantization: str
    kv_cache_dtype: str
    ranks: int
    context: int
    max_num_seqs: int
    weights_bytes: int
    process_bytes: int
    table_bytes: int
    activation_bytes: int
    kv_bytes_per_token: int
    context_bytes: int  # keys and values of one sequence of the whole context
    cache_bytes: int
    memory_bytes: int
    room_bytes: int
    longest_context: int
    fits: tuple[Fit, ...]


def needs_of_model(engine: EngineConfig, checkpoint: Checkpoint, memories: Sequence[int]) -> ModelNeeds:
    """The needs of a core with resolved settings; `memories` are those of each card, or those a core may use here.

    Without known memory nothing fits.
    """
    ranks, context = num_ranks(engine.parallel), engine.model.max_model_len or 1
    weights, activation = weights_of(engine, checkpoint), activation_bytes(engine, checkpoint)
    tables = context * table_bytes_per_token(engine, checkpoint)
    memory = min(memories, default=0)
    if engine.device.device == "cpu":
        processes = memory_needed(engine, checkpoint) - weights
        room = memory - weights - processes - tables
        default = default_kv_cache_bytes(engine, checkpoint, memory * engine.parallel.data_parallel_size)
        cache = (engine.cache.kv_cache_memory_bytes or default) * ranks
    else:
        processes = 0
        share = int(memory * engine.cache.gpu_memory_utilization)
        room = ranks * (share - activation) - weights - tables
        own = engine.cache.kv_cache_memory_bytes
        cache = max(0, room) if own is None else own * ranks

    def sequences(num_tokens: int, size: int) -> int:
        block = engine.cache.block_size
        needed = kv_bytes(engine, checkpoint, -(-num_tokens // block) * block)
        return min(engine.scheduler.max_num_seqs, max(0, size) // needed)

    usable = min(cache, max(0, room))
    return ModelNeeds(
        name=checkpoint.name,
        format=checkpoint.format,
        architecture=checkpoint.spec.architecture,
        parameters=num_parameters(checkpoint.spec),
        device=engine.device.device,
        dtype=engine.model.dtype,
        quantization=engine.model.quantization,
        kv_cache_dtype=engine.cache.kv_cache_dtype,
        ranks=ranks,
        context=context,
        max_num_seqs=engine.scheduler.max_num_seqs,
        weights_bytes=weights,
        process_bytes=processes,
        table_bytes=tables,
        activation_bytes=activation,
        kv_bytes_per_token=kv_bytes_per_token(engine, checkpoint),
        context_bytes=kv_bytes(engine, checkpoint, context),
        cache_bytes=cache,
        memory_bytes=memory,
        room_bytes=room,
        longest_context=_longest(engine, checkpoint, usable),
        fits=tuple(
            Fit(length, sequences(length, usable), sequences(length, room))
            for length in (*(length for length in CONTEXTS if length < context), context)
        ),
    )


def _longest(engine: EngineConfig, checkpoint: Checkpoint, size: int) -> int:
    """The longest sequence whose keys and values fit into `size` bytes, in whole blocks; at most the context."""
    block, context = engine.cache.block_size, engine.model.max_model_len or 1
    low, high = 0, context // block
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if kv_bytes(engine, checkpoint, middle * block) <= size else (low, middle - 1)
    return context if low == context // block and kv_bytes(engine, checkpoint, context) <= size else low * block
