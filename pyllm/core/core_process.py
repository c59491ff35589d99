"""The EngineCore process: sockets, executor, scheduler, step loop, drain.

Its caller passes the executor, so this file knows nothing of workers. Does not know its parent's role.
"""

import asyncio
import gc
import logging
import os
import secrets
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from mmap import mmap
from pathlib import Path
from typing import Any, NamedTuple

import uvloop
import zmq

from pyllm._rust import Scheduler, SchedulerError
from pyllm.config.engine_settings import EngineConfig, ParallelConfig, is_rust
from pyllm.config.process_config import CoreConfig
from pyllm.config.rank_coordinates import num_ranks, ranks_of_stage
from pyllm.core.calls import live_settings
from pyllm.core.event_publisher import EventPublisher
from pyllm.core.executors.executor import Executor
from pyllm.core.executors.host_inventory import whole_blocks
from pyllm.core.fingerprints import fingerprints
from pyllm.core.loop import EngineCore
from pyllm.core.policy_plugins import Policy, load_policy
from pyllm.errors import ConfigError, StartError
from pyllm.families.kv_layout import kv_groups
from pyllm.kv_transfer import ConnectorContext, SchedulerConnector, find_connector, make_scheduler_connector
from pyllm.plugins import LOGITS_PROCESSORS, SAMPLERS, offered_names
from pyllm.recording import Recording
from pyllm.supervision.burst_logger import BurstLogger
from pyllm.supervision.flight_recorder import FlightRecorder
from pyllm.supervision.log_level import set_log_level
from pyllm.supervision.parent_link import ParentLink
from pyllm.wire import curve, ipc
from pyllm.wire.heartbeat import HEARTBEAT_INTERVAL
from pyllm.wire.ipc import Sender
from pyllm.wire.messages import PROTOCOL_VERSION, ClientMessage, CoreMessage, ModelInfo, Ready
from pyllm.wire.supervision_messages import Kept

# Seconds that clients have to read the last messages of a core.
CLOSE_LINGER = 2.0
# One of so many KV blocks may wait to be copied for the KV connector.
_SAVING_SHARE = 16

logger = logging.getLogger(__name__)


def run(
    config: CoreConfig,
    executor: Executor,
    context: zmq.Context[zmq.Socket[bytes]],
    parent: ParentLink,
    memory: mmap | None = None,
) -> int:
    """Serve until SIGTERM, then drain; the exit code is 0 unless workers died too often or did not start.

    `memory` outlives this process, see `EngineCore`.
    """
    try:
        return parent.run(lambda: uvloop.run(_serve(config, executor, context, parent, memory)))
    finally:
        context.destroy(int(CLOSE_LINGER * 1000))


class CoreParts(NamedTuple):
    """The result of `start`, for `make_core`; `policy` is None if the scheduler has it built in.

    `token_seconds` is the measured upper bound per token in a step, 0 if none was measured. `host_blocks` are those of
    host memory that has outlived a core before this one.
    """

    scheduler: Scheduler
    ready: Ready
    policy: Policy | None
    token_seconds: float
    connector: SchedulerConnector | None = None
    host_blocks: bytes = b""


async def start(config: CoreConfig, executor: Executor) -> CoreParts:
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
    await executor.start()
    num_blocks = engine.cache.num_gpu_blocks_override or min(await executor.collective("num_blocks"))
    block_size = engine.cache.block_size
    max_model_len = engine.model.max_model_len
    assert max_model_len is not None, "the configuration was not resolved"
    if num_blocks < 1:
        raise ConfigError(f"the KV cache has no room for one block of {block_size} tokens: raise kv_cache_memory_bytes")
    num_host_blocks = min(await executor.collective("num_host_blocks"))
    await executor.collective("allocate", num_blocks, num_host_blocks)
    for rank, held in enumerate(await executor.collective("statistics")):
        megabytes = ", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in held.items())
        logger.info("rank %d of core %d holds %s", rank, config.index, megabytes)
    groups = kv_groups(spec, max_model_len, hybrid=not engine.cache.disable_hybrid_kv_cache_manager)
    epoch = secrets.randbits(63)
    weights = ""
    if engine.kv_transfer.kv_transfer_config is not None:
        weights = await asyncio.to_thread(_weights_digest, config.checkpoint.files)
    instruction_sets = await executor.collective("instruction_set")
    numerics, cache_namespace = fingerprints(config, groups, instruction_sets, weights)
    swap_block_seconds = max(await executor.collective("swap_seconds"))
    token_seconds = _through_all_stages(await executor.collective("token_seconds"), engine.parallel)
    try:
        scheduler = Scheduler(
            block_size=block_size,
            num_blocks=num_blocks,
            max_num_seqs=engine.scheduler.max_num_seqs,
            max_model_len=max_model_len,
            vocab_size=spec.vocab_size,
            kv_groups=[{"window": group.window} for group in groups],
            num_host_blocks=num_host_blocks,
            swap_block_seconds=swap_block_seconds,
            enable_prefix_caching=engine.cache.enable_prefix_caching,
            max_pinned_blocks=engine.cache.max_pinned_blocks,
            max_saving_blocks=_max_saving_blocks(engine, num_blocks),
            prefix_hash=engine.cache.prefix_hash,
            prefix_hash_seed=engine.cache.prefix_hash_seed,
            cache_namespace=cache_namespace,
            separate_outputs=bool(engine.sparse.sparse_attention),
            enable_kv_cache_events=engine.cache.enable_kv_cache_events,
            incarnation=epoch,
            num_speculative_tokens=engine.scheduler.num_speculative_tokens or 0,
            pipeline_parallel_size=engine.parallel.pipeline_parallel_size,
            **live_settings(engine.scheduler),
        )
    except SchedulerError as error:
        raise ConfigError(str(error)) from error
    kv_cache_tokens = scheduler.longest_sequence() or max_model_len
    if kv_cache_tokens < max_model_len:
        logger.warning(
            "the KV cache holds a sequence of %d tokens, less than max_model_len %d: longer requests are refused",
            kv_cache_tokens,
            max_model_len,
        )
    dtypes = {engine.model.dtype, engine.cache.kv_cache_dtype}
    model = ModelInfo(
        name=engine.model.served_model_name[0],
        max_model_len=max_model_len,
        vocab_size=spec.vocab_size,
        eos_token_ids=config.checkpoint.tokenizer.eos_token_ids,
        dtype=engine.model.dtype,
        quantization=engine.model.quantization,
        kv_cache_dtype=engine.cache.kv_cache_dtype,
        block_size=block_size,
        num_blocks=num_blocks,
        kv_cache_tokens=kv_cache_tokens,
        kv_windows=tuple(group.window for group in groups),
        max_num_seqs=engine.scheduler.max_num_seqs,
        max_num_batched_tokens=engine.scheduler.max_num_batched_tokens,
        tensor_parallel_size=engine.parallel.tensor_parallel_size,
        pipeline_parallel_size=engine.parallel.pipeline_parallel_size,
        max_logprobs=min(engine.model.max_logprobs, spec.vocab_size),
        hidden_size=spec.hidden_size,
        enable_prefix_caching=engine.cache.enable_prefix_caching,
        pooling=config.checkpoint.embedding.pooling,
        is_matryoshka=config.checkpoint.embedding.is_matryoshka,
        matryoshka_dimensions=config.checkpoint.embedding.dimensions,
        model_impl="native" if spec.transformers is None else "transformers",
        prefix_hash=engine.cache.prefix_hash,
        prefix_hash_seed=engine.cache.prefix_hash_seed,
        cache_namespace=cache_namespace,
        batch_invariant=spec.transformers is None
        and (engine.device.batch_invariant or is_rust(engine.device, engine.device.device, dtypes)),
        saves_kv_blocks=_saves(engine),
    )
    connector = await _connect(engine, executor, model, weights)
    host_blocks = await whole_blocks(executor) if num_host_blocks else b""
    ready = Ready(PROTOCOL_VERSION, epoch, model, numerics)
    return CoreParts(scheduler, ready, policy, token_seconds, connector, host_blocks)


def make_core(
    config: CoreConfig,
    parts: CoreParts,
    executor: Executor,
    sender: Sender[CoreMessage],
    *,
    on_alone: Callable[[bool], object] = lambda is_alone: None,
    publish: Callable[[], object] = lambda: None,
    memory: mmap | None = None,
    keep: Callable[[Kept], object] = lambda kept: None,
    set_log_level: Callable[[str], None] | None = None,
) -> EngineCore:
    """The core from the parts of `start`, with the recording that the configuration names; else as `EngineCore` says.

    Raises:
        ConfigError: the recording's file cannot be made.
    """
    settings, scheduler = config.engine.scheduler, parts.scheduler
    recording = None
    if settings.scheduler_recording:
        recording = Recording(Path(settings.scheduler_recording), scheduler.take_recording)
        scheduler.start_recording()
    recorder = FlightRecorder(Path(config.engine.recovery.flight_recorder_dir))
    core = EngineCore(
        scheduler,
        executor,
        sender,
        parts.ready,
        on_crash=lambda name, report: recorder.record(f"core-{config.index}-{name}", report),
        on_alone=on_alone,
        publish=publish,
        memory=memory,
        earlier=config.kept,
        keep=keep,
        set_log_level=set_log_level,
        config=config.engine,
        clock=time.monotonic,
        depth=_depth(config.engine),
        policy=parts.policy,
        connector=parts.connector,
        recording=recording,
        sampling_plugins=offered_names(LOGITS_PROCESSORS) | offered_names(SAMPLERS),
        token_seconds=parts.token_seconds,
    )
    if parts.host_blocks:  # After the settings that clients of a core before have changed.
        scheduler.restore_host_blocks(parts.host_blocks)
    return core


def _weights_digest(files: Sequence[str]) -> str:
    """The digest of all weights. Raises ConfigError where they cannot be read."""
    from pyllm.checkpoint.cache import weights_digest

    began = time.monotonic()
    try:
        digest = weights_digest(files)
    except OSError as error:
        raise ConfigError(f"the weights cannot be read, by which a KV store knows models apart: {error}") from error
    logger.info("all weights were digested for the KV store in %.1f s", time.monotonic() - began)
    return digest


def _max_saving_blocks(engine: EngineConfig, num_blocks: int) -> int:
    """Blocks that wait to be copied for the KV connector, which nobody else can have meanwhile."""
    return max(1, num_blocks // _SAVING_SHARE) if _saves(engine) else 0


def _saves(engine: EngineConfig) -> bool:
    transfer = engine.kv_transfer.kv_transfer_config
    return transfer is not None and transfer.saves


async def _connect(
    engine: EngineConfig, executor: Executor, model: ModelInfo, weights: str
) -> SchedulerConnector | None:
    """Make both halves of the KV connector, if there is to be one. Raises ConfigError."""
    transfer = engine.kv_transfer.kv_transfer_config
    if transfer is None:
        return None
    context = ConnectorContext(
        namespace=bytes.fromhex(model.cache_namespace),
        block_size=model.block_size,
        num_ranks=num_ranks(engine.parallel),
        windows=model.kv_windows,
        cache=engine.cache,
        weights=weights,
    )
    connector = make_scheduler_connector(transfer, context)
    try:
        await executor.collective("register_kv_caches", model.cache_namespace, weights)
    except BaseException:
        connector.shutdown()
        raise
    return connector


def _depth(engine: EngineConfig) -> int:
    """Steps in flight: one for each stage of a pipeline; with overlap two, so that no worker waits for this process."""
    num_stages = engine.parallel.pipeline_parallel_size
    if num_stages > 1:
        return num_stages
    return 2 if engine.scheduler.async_scheduling else 1


def _through_all_stages(seconds: list[float], parallel: ParallelConfig) -> float:
    """What a token takes that each rank holds up for so long: stages come one after another, their ranks together."""
    stages = [ranks_of_stage(stage, parallel) for stage in range(parallel.pipeline_parallel_size)]
    return sum(max(seconds[rank] for rank in ranks) for ranks in stages)


async def _serve(
    config: CoreConfig,
    executor: Executor,
    context: zmq.Context[zmq.Socket[bytes]],
    parent: ParentLink,
    memory: mmap | None,
) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    keys = curve.server_keys(Path(config.curve_keys)) if config.curve_keys else None
    authenticator = curve.authenticate(context, Path(config.curve_keys)) if config.curve_keys else None
    # Bound before the model is loaded: whoever connects early waits in the socket's queue, not in a retry loop.
    os.umask(0o077)  # An ipc:// socket is a file; only its owner may connect.
    try:
        socket = ipc.bind(context, zmq.ROUTER, config.bind, keys)
    except zmq.ZMQError as error:
        # Where a core before this one has not quite gone, the next one may listen again.
        kind = StartError if error.errno == zmq.EADDRINUSE else ConfigError
        raise kind(f"cannot listen on {config.bind}: {error.strerror}; choose another address") from None
    address = socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
    parent.enter("starting the workers")
    starting = asyncio.ensure_future(start(config, executor))
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            return 0
        core: EngineCore
        endpoint: ipc.Endpoint[ClientMessage, CoreMessage] = ipc.Endpoint(
            socket,
            ClientMessage,
            lambda *received: core.receive(*received),  # noqa: PLW0108 - the core is made below, with this endpoint
            lambda *received: core.malformed(*received),  # noqa: PLW0108
        )
        publisher: EventPublisher | None = None
        try:
            parts, events = starting.result(), config.engine.kv_events
            if events.kv_events_endpoint:
                publisher = EventPublisher(parts.scheduler, context, events, rank=config.index)
            core = make_core(
                config,
                parts,
                executor,
                endpoint,
                on_alone=parent.set_blamed_on_request,
                publish=publisher.publish if publisher else _publish_nothing,
                memory=memory,
                keep=parent.keep,
                set_log_level=set_log_level,
            )
            gc.freeze()
            parent.started(address)
            await _run(core, stop, parent, config.shutdown_timeout)
        finally:
            endpoint.close(CLOSE_LINGER)
            if publisher is not None:
                publisher.close()
        return 0
    finally:
        for task in (starting, stopping):
            task.cancel()
        await executor.close()
        socket.close(int(CLOSE_LINGER * 1000))
        if authenticator is not None:
            authenticator.stop()


def _publish_nothing() -> None:
    """What a core without a publisher calls before each step."""


async def _run(core: EngineCore, stop: asyncio.Event, parent: ParentLink, shutdown_timeout: float) -> None:
    """Step until `stop` is set; then drain for `shutdown_timeout` seconds or until it is set again."""
    running = asyncio.ensure_future(core.run())
    beating = asyncio.ensure_future(_beat(core, parent))
    try:
        await _first(running, beating, stop.wait())
        if stop.is_set():
            stop.clear()
            parent.enter("draining")
            core.drain()
            await _first(running, beating, stop.wait(), seconds=shutdown_timeout)
        for task in (running, beating):
            if task.done():
                task.result()
        if not running.done():
            core.abandon("the engine was shut down before this request had finished")
    finally:
        running.cancel()
        await core.finish_transfers()
        beating.cancel()
        core.close()


async def _first(
    running: asyncio.Future[None],
    beating: asyncio.Future[None],
    stopping: Coroutine[Any, Any, Any],
    seconds: float | None = None,
) -> None:
    stopped = asyncio.ensure_future(stopping)
    await asyncio.wait({running, beating, stopped}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()


async def _beat(core: EngineCore, parent: ParentLink) -> None:
    preemptions = BurstLogger("the KV cache is too small for all requests: sequences are swapped out or recomputed")
    while True:
        core.beat()
        preemptions.look(core.stats()["num_preemptions"])
        parent.step = core.last_step
        parent.pulse()
        await asyncio.sleep(HEARTBEAT_INTERVAL)
