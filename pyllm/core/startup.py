"""Starts the ranks, asks them how many KV blocks they hold, and makes the scheduler for that many.

Knows no process and no socket.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyllm._rust import Scheduler, SchedulerError
from pyllm.config.engine_settings import CACHE_SETTINGS_OF_SCHEDULER, EngineConfig, ParallelConfig, is_rust
from pyllm.config.lora_settings import lora_module
from pyllm.config.plugins import LOGITS_PROCESSORS, SAMPLERS, offered_names
from pyllm.config.process_config import CoreConfig
from pyllm.config.rank_coordinates import num_ranks, ranks_of_stage
from pyllm.core.adapters import AdapterSource, ReadAdapter, read_adapters
from pyllm.core.calls import live_settings
from pyllm.core.composition import CoreSetup
from pyllm.core.executors.executor import Executor
from pyllm.core.executors.host_inventory import whole_blocks
from pyllm.core.fingerprints import fingerprints
from pyllm.core.kv.cache_sizes import CacheSizes
from pyllm.core.policy_plugins import load_policy
from pyllm.core.weight_versions import WeightsSource, kept_checkpoint, versioned
from pyllm.errors import ConfigError, EngineDeadError, WorkerDeadError
from pyllm.families.kv_layout import KVGroup, kv_groups, num_bare_blocks
from pyllm.kv_transfer import ConnectorContext, SchedulerConnector, find_connector, make_scheduler_connector
from pyllm.supervision.flight_recorder import FlightRecorder
from pyllm.wire.messages import PROTOCOL_VERSION, ModelInfo, Ready

# At most one of this many KV blocks may wait to be copied for the KV connector.
_SAVING_SHARE = 16

logger = logging.getLogger(__name__)


async def start(config: CoreConfig, executor: Executor) -> CoreSetup:
    """Start the ranks, size the KV cache by the rank with the least memory, and make the scheduler for it.

    The host pool has the same size on every rank; the slowest rank sets the time of a swap.

    Raises:
        StartError: a rank did not become ready.
        ConfigError: not even one block fits, or fewer than may be pinned, or the policy cannot be imported.
    """
    engine, spec = config.engine, config.checkpoint.spec
    # A policy or connector that cannot be imported must fail before the model is loaded.
    policy = load_policy(engine.scheduler.scheduling_policy)
    if engine.kv_transfer.kv_transfer_config is not None:
        find_connector(engine.kv_transfer.kv_transfer_config)
    weights_now = kept_checkpoint(config.kept.weights) or config.checkpoint
    if weights_now.version:
        executor.use_weights(weights_now)
    # The look-up of plugins reads files, while the ranks start.
    _, sampling_plugins = await asyncio.gather(
        executor.start(), asyncio.to_thread(offered_names, LOGITS_PROCESSORS, SAMPLERS)
    )
    sizes = await _allocate(config, executor)
    max_model_len = engine.model.max_model_len
    assert max_model_len is not None, "the configuration was not resolved"
    hybrid, ranks = not engine.cache.disable_hybrid_kv_cache_manager, engine.parallel.tensor_parallel_size
    groups = kv_groups(spec, max_model_len, hybrid, ranks)
    weights = ""
    if engine.kv_transfer.kv_transfer_config is not None:
        weights = await asyncio.to_thread(_weights_digest, config.checkpoint.files)
    instruction_sets = await executor.collective("instruction_set")
    numerics, cache_namespace = fingerprints(config, groups, instruction_sets, weights)
    token_seconds = _through_all_stages(await executor.collective("token_seconds"), engine.parallel)
    context = ConnectorContext(
        namespace=bytes.fromhex(cache_namespace),
        block_size=engine.cache.block_size,
        num_ranks=num_ranks(engine.parallel),
        windows=tuple(group.window for group in groups),
        state_blocks=max(await executor.collective("state_blocks")) if sizes.num_states else 0,
        cache=engine.cache,
        weights=weights,
    )
    connector = await _connect(config, executor, context)
    epoch = secrets.randbits(63)
    try:
        scheduler = _make_scheduler(
            config,
            groups,
            num_blocks=sizes.num_blocks,
            max_saving_blocks=_max_saving_blocks(connector, sizes.num_blocks),
            num_host_blocks=sizes.num_host_blocks,
            num_states=sizes.num_states,
            num_host_states=sizes.num_host_states,
            state_checkpoint_blocks=-(-(engine.cache.state_checkpoint_tokens or 0) // engine.cache.block_size),
            swap_block_seconds=max(await executor.collective("swap_seconds")),
            swap_state_seconds=(max(await executor.collective("state_swap_seconds")) if sizes.num_host_states else 0.0),
            max_model_len=max_model_len,
            cache_namespace=cache_namespace,
            incarnation=epoch,
            weights_version=weights_now.version,
        )
    except SchedulerError as error:
        if connector is not None:
            connector.shutdown()
        raise ConfigError(str(error)) from error
    kv_cache_tokens = scheduler.longest_sequence() or max_model_len
    if kv_cache_tokens < max_model_len:
        logger.warning(
            "the KV cache holds a sequence of %d tokens, less than max_model_len %d: longer requests are refused",
            kv_cache_tokens,
            max_model_len,
        )
    model = _model_info(
        config,
        groups,
        num_blocks=sizes.num_blocks,
        max_model_len=max_model_len,
        kv_cache_tokens=kv_cache_tokens,
        cache_namespace=cache_namespace,
    )
    adapter_source, adapters = await _adapters(config, executor)
    host_blocks = await whole_blocks(executor) if sizes.num_host_blocks else b""
    crashes = FlightRecorder(Path(engine.recovery.flight_recorder_dir))
    return CoreSetup(
        scheduler=scheduler,
        executor=executor,
        ready=versioned(Ready(PROTOCOL_VERSION, epoch, model, numerics), weights_now.version),
        config=engine,
        depth=_depth(engine),
        policy=policy,
        connector=connector,
        sampling_plugins=sampling_plugins,
        token_seconds=token_seconds,
        host_blocks=host_blocks,
        earlier=config.kept,
        adapter_source=adapter_source,
        adapters=adapters,
        weights_source=_weights_source(config),
        weights=weights_now,
        on_crash=lambda name, report: crashes.record(f"core-{config.index}-{name}", report),
    )


def _weights_source(config: CoreConfig) -> WeightsSource:
    from pyllm.checkpoint.hub import Hub  # Imported when it is needed: a start is faster without.

    engine = config.engine
    assert engine.model.max_model_len is not None, "the configuration was not resolved"
    return WeightsSource(
        config.checkpoint,
        Hub(cache_dir=engine.model.download_dir or None),
        engine.model.max_model_len,
        engine.model.hf_overrides,
        is_cpu=engine.device.device == "cpu",
    )


async def _adapters(config: CoreConfig, executor: Executor) -> tuple[AdapterSource | None, list[ReadAdapter]]:
    """The source of adapters, None if the core serves none, and the adapters that the ranks have loaded."""
    engine, settings = config.engine, config.engine.lora
    if not settings.enable_lora:
        return None, []
    from pyllm.checkpoint.hub import Hub  # Other cores need not import it.

    hub = Hub(cache_dir=engine.model.download_dir or None, token=engine.model.hf_token or None)
    source = AdapterSource(config.checkpoint.spec, hub, settings)
    modules = [lora_module(text) for text in settings.lora_modules]
    return source, await read_adapters(executor, source, modules, config.kept.adapters)


async def _allocate(config: CoreConfig, executor: Executor) -> CacheSizes:
    """Make the KV cache, the states and the host pool on every rank. Raises ConfigError."""
    cache = config.engine.cache
    states: tuple[int, ...] = ()
    if config.checkpoint.spec.has_states:
        # A pipeline stage without such layers sets no limit, and neither does one without attention below.
        states = (min(number for number in await executor.collective("num_states") if number is not None),)
        if states[0] < 2:
            raise ConfigError("the KV cache has no room for two states of a sequence: raise kv_cache_memory_bytes")
    fitting = [number for number in await executor.collective("num_blocks", *states) if number is not None]
    context = config.engine.model.max_model_len or config.checkpoint.spec.max_position_embeddings
    if not fitting:  # No layer has attention.
        fitting = [num_bare_blocks(context, cache.block_size, sum(states))]
    num_blocks = cache.num_gpu_blocks_override or min(fitting)
    if num_blocks < 1:
        raise ConfigError(
            f"the KV cache has no room for one block of {cache.block_size} tokens: raise kv_cache_memory_bytes"
        )
    num_host_blocks = min(await executor.collective("num_host_blocks"))
    if states:
        states = (*states, min(await executor.collective("num_host_states")))
    sizes = CacheSizes(num_blocks, num_host_blocks, *states)
    await executor.collective("allocate", *sizes)
    for rank, held in enumerate(await executor.collective("statistics")):
        megabytes = ", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in held.items())
        logger.info("rank %d of core %d holds %s", rank, config.index, megabytes)
    return sizes


def _make_scheduler(config: CoreConfig, groups: Sequence[KVGroup], **measured: Any) -> Scheduler:
    """The scheduler, from the settings and `measured` or derived values. Raises SchedulerError."""
    engine = config.engine
    return Scheduler(
        max_num_seqs=engine.scheduler.max_num_seqs,
        vocab_size=config.checkpoint.spec.vocab_size + config.checkpoint.spec.second_text_offset,
        kv_groups=[{"window": group.window} for group in groups],
        separate_outputs=bool(engine.sparse.sparse_attention),
        whole_prompts=config.checkpoint.spec.is_bidirectional,
        max_loras=engine.lora.num_slots,
        num_speculative_tokens=engine.scheduler.num_speculative_tokens or 0,
        pipeline_parallel_size=engine.parallel.pipeline_parallel_size,
        **{name: getattr(engine.cache, name) for name in CACHE_SETTINGS_OF_SCHEDULER},
        **measured,
        **live_settings(engine.scheduler),
    )


def _model_info(
    config: CoreConfig,
    groups: Sequence[KVGroup],
    *,
    num_blocks: int,
    max_model_len: int,
    kv_cache_tokens: int,
    cache_namespace: str,
) -> ModelInfo:
    """The properties of the model that clients need."""
    engine, spec, embedding = config.engine, config.checkpoint.spec, config.checkpoint.embedding
    transfer = engine.kv_transfer.kv_transfer_config
    return ModelInfo(
        name=engine.model.served_model_name[0],
        max_model_len=max_model_len,
        vocab_size=spec.vocab_size,
        eos_token_ids=config.checkpoint.tokenizer.eos_token_ids,
        dtype=engine.model.dtype,
        quantization=engine.model.quantization,
        kv_cache_dtype=engine.cache.kv_cache_dtype,
        block_size=engine.cache.block_size,
        num_blocks=num_blocks,
        kv_cache_tokens=kv_cache_tokens,
        kv_windows=tuple(group.window for group in groups),
        max_num_seqs=engine.scheduler.max_num_seqs,
        max_num_batched_tokens=engine.scheduler.max_num_batched_tokens,
        tensor_parallel_size=engine.parallel.tensor_parallel_size,
        pipeline_parallel_size=engine.parallel.pipeline_parallel_size,
        max_logprobs=spec.vocab_size if (most := engine.model.max_logprobs) < 0 else min(most, spec.vocab_size),
        hidden_size=spec.embedding_size,
        enable_prefix_caching=engine.cache.enable_prefix_caching,
        pooling=embedding.pooling,
        is_matryoshka=embedding.is_matryoshka,
        matryoshka_dimensions=embedding.dimensions,
        can_generate=not embedding.is_only_use,
        is_for_embeddings=embedding.is_main_use,
        labels=embedding.labels,
        class_activation=embedding.activation,
        relevant_class=embedding.relevant_class,
        pair_template=embedding.pair_template,
        pair_variables=embedding.pair_variables,
        second_text_offset=spec.second_text_offset,
        model_impl="native" if spec.transformers is None else "transformers",
        prefix_hash=engine.cache.prefix_hash,
        prefix_hash_seed=engine.cache.prefix_hash_seed,
        cache_namespace=cache_namespace,
        batch_invariant=spec.transformers is None
        and (engine.device.batch_invariant or is_rust(engine.device, engine.device.device)),
        saves_kv_blocks=transfer is not None and transfer.saves,
    )


def _weights_digest(files: Sequence[str]) -> str:
    """The digest of all weights. Raises ConfigError if they cannot be read."""
    from pyllm.checkpoint.cache import weights_digest

    began = time.monotonic()
    try:
        digest = weights_digest(files)
    except OSError as error:
        raise ConfigError(f"the weights cannot be read, by which a KV store knows models apart: {error}") from error
    logger.info("all weights were digested for the KV store in %.1f s", time.monotonic() - began)
    return digest


def _max_saving_blocks(connector: SchedulerConnector | None, num_blocks: int) -> int:
    """The maximum number of blocks that wait to be copied for the KV connector. No request can use them meanwhile."""
    return max(1, num_blocks // _SAVING_SHARE) if connector is not None and connector.config.saves else 0


async def _connect(config: CoreConfig, executor: Executor, context: ConnectorContext) -> SchedulerConnector | None:
    """Make both halves of the KV connector, if one is configured.

    If that fails in a restarted core, it goes on without: a lost store must not end the streams that wait for the core.

    Raises:
        ConfigError: the connector could not be made for the first core.
    """
    transfer = config.engine.kv_transfer.kv_transfer_config
    if transfer is None:
        return None
    try:
        connector = make_scheduler_connector(transfer, context)
        try:
            await executor.collective("register_kv_caches", *context.of_worker)
        except BaseException:
            connector.shutdown()
            raise
    except WorkerDeadError:
        raise
    except (ConfigError, EngineDeadError) as error:
        if not config.is_successor:
            raise
        logger.error("KV blocks are neither loaded nor saved until the core starts again: %s", error)
        return None
    return connector


def _depth(engine: EngineConfig) -> int:
    """Steps in flight: one per pipeline stage; two with overlap, so that no worker waits for this process."""
    num_stages = engine.parallel.pipeline_parallel_size
    if num_stages > 1:
        return num_stages
    return 2 if engine.scheduler.async_scheduling else 1


def _through_all_stages(seconds: list[float], parallel: ParallelConfig) -> float:
    """Seconds per token through all stages, given each rank's: the sum over stages of the slowest rank's time."""
    stages = [ranks_of_stage(stage, parallel) for stage in range(parallel.pipeline_parallel_size)]
    return sum(max(seconds[rank] for rank in ranks) for ranks in stages)
