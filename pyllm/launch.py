"""How a server comes to be: configuration is resolved, sockets made, cores and API processes started as siblings.

Imports neither torch nor the web framework; what the started processes do is in `roles.py`.
"""

import asyncio
import contextlib
import ctypes
import itertools
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from setproctitle import setproctitle

from pyllm import black_box, line_writer, log, supervisor
from pyllm.checkpoint import Checkpoint, check_tensor_parallel, read_checkpoint
from pyllm.child import keep_exit_codes
from pyllm.config import (
    CacheConfig,
    EngineConfig,
    HeadlessConfig,
    RecoveryConfig,
    SchedulerConfig,
    ServerConfig,
)
from pyllm.core.policies import find_policy
from pyllm.core.recording import check_new
from pyllm.errors import ConfigError
from pyllm.flight_recorder import FlightRecorder, config_json, resolve_folder
from pyllm.place import Place, PlaceLimits
from pyllm.precision import resolve_precision
from pyllm.process_config import ApiConfig, CoreConfig, NurseryConfig, StateConfig
from pyllm.server_settings import resolve_server, shared_config
from pyllm.siblings import supervise
from pyllm.sockets import SocketFolder, bind_listener, bind_unix_listener
from pyllm.supervisor import Process
from pyllm.workers.attention_backends import find_attention_backend

# What workers are made of: a function that imports it all, and gives what each of them runs.
WORKER_ENTRY = "pyllm.workers.process:prepare"
# Tokens in a step unless said otherwise. A CPU computes as many a second in small steps as in large ones, and a stream
# waits for each step with others' prompts in it; `benchmarks/README.md` has the figures.
BATCHED_TOKENS = {"cuda": 2048, "cpu": 192}

logger = logging.getLogger(__name__)


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
                served_model_name=config.model.served_model_name or checkpoint.name,
                dtype=dtype,
                quantization=quantization,
                max_model_len=max_model_len,
            ),
            cache=msgspec.structs.replace(config.cache, kv_cache_dtype=kv_cache_dtype),
            scheduler=msgspec.structs.replace(
                config.scheduler,
                scheduler_recording=recording,
                max_num_batched_tokens=_batched_tokens(config.scheduler, device),
            ),
            device=msgspec.structs.replace(config.device, device=device),
            recovery=msgspec.structs.replace(config.recovery, flight_recorder_dir=crashes),
        ),
        checkpoint,
    )


def _batched_tokens(scheduler: SchedulerConfig, device: str) -> int:
    return scheduler.max_num_batched_tokens or max(BATCHED_TOKENS[device], scheduler.max_num_seqs)


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


def core_place(config: CoreConfig) -> Place:
    """The place of an EngineCore process."""
    recovery = config.engine.recovery
    limits = PlaceLimits(
        ready_timeout=config.ready_timeout, max_restarts=recovery.max_restarts, warm_spare=recovery.warm_spares
    )
    name = f"core {config.index}"
    return Place(
        lambda: supervisor.spawn(name, "core", memory_size=black_box.size(config.engine.scheduler.max_num_seqs)),
        successive_configs(config),
        limits,
        _recording(recovery, config),
    )


def nursery_place(core: CoreConfig, entry: str = WORKER_ENTRY) -> Place:
    """The place of the process that this core's workers are forked from; it outlives the core."""
    recovery = core.engine.recovery
    limits = PlaceLimits(ready_timeout=core.ready_timeout, max_restarts=recovery.max_restarts)
    config = NurseryConfig(bind=core.nursery, entry=entry)
    return Place(
        lambda: supervisor.spawn("the nursery", "nursery"), lambda _: config, limits, _recording(recovery, config)
    )


def engine_places(config: CoreConfig) -> list[list[Place]]:
    """The places of a core and of what it needs, in the order in which they are told to end."""
    return [[core_place(config)], [nursery_place(config)] if config.nursery else []]


def nursery_address(engine: EngineConfig, folder: str) -> str:
    """Where a core's nursery listens, in the private folder; empty where no worker processes are wanted."""
    return f"{folder}/nursery" if engine.parallel.distributed_executor_backend == "mp" else ""


def _recording(recovery: RecoveryConfig, config: msgspec.Struct) -> Callable[[Process], None]:
    """What leaves a record of each child that has died, of which `config` is what it was told."""
    recorder = FlightRecorder(Path(recovery.flight_recorder_dir))

    def record(process: Process) -> None:
        report: dict[str, Any] = {"death": process.obituary(), "stage": process.stage, "pid": process.pid}
        name = process.name.replace(" ", "-")
        report |= black_box.last_steps(process.memory)
        parts = {"report.json": msgspec.json.encode(report), "config.json": config_json(config)}
        recorder.record(name, parts | {f"{name}.log": process.log})

    return record


def successive_configs(config: CoreConfig) -> Callable[[str], CoreConfig]:
    """What each core of a place is told: the first as given, the others so that they can take its place."""
    numbers = itertools.count()
    recording = config.engine.scheduler.scheduler_recording

    def configure(address: str) -> CoreConfig:
        number = next(numbers)
        scheduler = config.engine.scheduler
        if recording and number:  # Each records its own life.
            scheduler = msgspec.structs.replace(scheduler, scheduler_recording=_next_recording(recording, number))
        engine = msgspec.structs.replace(config.engine, scheduler=scheduler)
        # Clients know the port that was chosen, where that was left open.
        return msgspec.structs.replace(config, engine=engine, bind=address or config.bind)

    return configure


def _next_recording(path: str, number: int) -> str:
    """A file for the recording of the core of this number; empty where none can be made: a core goes on without one."""
    while os.path.lexists(f"{path}.{number}"):  # of an earlier run
        number += 1
    try:
        check_new(Path(f"{path}.{number}"))
    except ConfigError as error:
        logger.warning("the next core is not recorded: %s", error)
        return ""
    return f"{path}.{number}"


def serve(engine: EngineConfig, server: ServerConfig) -> int:
    """Run a core, the API processes and what they share until SIGTERM or SIGINT, then drain; gives the exit code.

    Raises:
        PyllmError: it cannot start, or a process was lost for good.
    """
    _become_supervisor()
    server, api_keys = resolve_server(server)
    engine, checkpoint = resolve(engine)
    with _listener(server) as listener, SocketFolder() as folder:
        core = CoreConfig(
            engine=engine,
            checkpoint=checkpoint,
            bind=f"ipc://{folder}/core-0",
            socket_folder=folder,
            ready_timeout=server.ready_timeout,
            shutdown_timeout=server.shutdown_timeout,
            nursery=nursery_address(engine, folder),
        )
        shared = shared_config(server, engine.scheduler.max_num_seqs)
        count = server.api_server_count
        state = StateConfig(shared=shared, bind=f"ipc://{folder}/state")
        api = ApiConfig(
            server=server,
            core_address=core.bind,
            checkpoint=checkpoint,
            served_model_name=engine.model.served_model_name,
            shared=shared,
            api_keys=api_keys,
            state_address=state.bind if count > 1 else "",
        )
        limits = PlaceLimits(ready_timeout=server.ready_timeout, max_restarts=engine.recovery.max_restarts)
        # In the order in which they end: API processes let their streams finish, then the rest has nothing left to do.
        groups = [
            [
                _api_process(msgspec.structs.replace(api, index=index), listener, limits, engine.recovery)
                for index in range(count)
            ],
            [_state_process(state, limits, engine.recovery)] if count > 1 else [],
            *engine_places(core),
        ]
        announcement = _announcement(listener, api)
        # Once the API processes have closed the port, clients are to be refused: while it is open here, they would
        # connect all the same, and wait until this process has ended.
        _supervise(groups, lambda _: announcement, server.shutdown_timeout, listener.close)
    return 0


def _state_process(config: StateConfig, limits: PlaceLimits, recovery: RecoveryConfig) -> Place:
    record = _recording(recovery, config)
    return Place(lambda: supervisor.spawn("the shared state", "state"), lambda _: config, limits, record)


def _api_process(config: ApiConfig, listener: socket.socket, limits: PlaceLimits, recovery: RecoveryConfig) -> Place:
    # All of them accept on the one socket, and who is idle is first: 2,000 connections went 35 to 65 to two processes,
    # in bursts or one by one. Sockets of their own (SO_REUSEPORT) would be balanced by the kernel, but blindly: a
    # process that is busy, or gone, would keep those clients waiting whom the others could serve.
    name, record = f"API process {config.index}", _recording(recovery, config)
    return Place(lambda: supervisor.spawn(name, "api", listener.fileno()), lambda _: config, limits, record)


def serve_core(engine: EngineConfig, headless: HeadlessConfig) -> int:
    """Run a headless core for `EngineClient` until SIGTERM or SIGINT, then drain; gives the exit code.

    Raises:
        ConfigError: an address that is neither ipc:// nor tcp://, or tcp:// without keys or the word that none are
            wanted.
        PyllmError: it cannot start, or was lost for good.
    """
    _become_supervisor()
    if not headless.bind.startswith(("ipc://", "tcp://")):
        raise ConfigError(f"cannot bind to {headless.bind!r}: give --bind ipc://PATH or tcp://HOST:PORT")
    if headless.bind.startswith("tcp://") and not headless.curve_keys:
        if not headless.insecure_tcp:
            raise ConfigError("tcp:// needs keys: give --curve-keys FOLDER (`pyllm keygen FOLDER`), or --insecure-tcp")
        may = "may use the engine, change its settings and forget its cache"
        reads = " and read all prompts" if engine.cache.enable_kv_cache_events else ""
        logger.warning("%s has no keys: anyone who reaches it %s%s", headless.bind, may, reads)
    engine, checkpoint = resolve(engine)
    with SocketFolder() as folder:
        core = CoreConfig(
            engine=engine,
            checkpoint=checkpoint,
            bind=headless.bind,
            socket_folder=folder,
            curve_keys=headless.curve_keys,
            ready_timeout=headless.ready_timeout,
            shutdown_timeout=headless.shutdown_timeout,
            nursery=nursery_address(engine, folder),
        )
        _supervise(
            engine_places(core), lambda addresses: f"pyllm core is ready on {addresses[0]}", headless.shutdown_timeout
        )
    return 0


def _become_supervisor() -> None:
    setproctitle("pyllm::serve")
    keep_exit_codes()
    log.configure("pyllm::serve")


def _supervise(
    groups: list[list[Place]],
    announcement: Callable[[list[str]], str],
    shutdown_timeout: float,
    on_ending: Callable[[], None] = lambda: None,
) -> None:
    try:
        asyncio.run(supervise(groups, announcement, shutdown_timeout, on_ending))
    finally:
        line_writer.stderr().finish()  # The reason of an end is the last line.


def _announcement(listener: socket.socket, api: ApiConfig) -> str:
    """The one line that is printed when the server is ready, with a request to try."""
    prompt = "The capital of France is"
    body = msgspec.json.encode({"model": api.served_model_name, "prompt": prompt, "max_tokens": 16}).decode()
    key = " -H 'Authorization: Bearer KEY'" if api.api_keys else ""
    scheme = "https" if api.server.ssl_certfile else "http"
    if listener.family == socket.AF_UNIX:
        path = listener.getsockname()
        where, address = f"unix:{path}", f"--unix-socket {path} {scheme}://localhost"
    else:
        host, port = listener.getsockname()[:2]
        where = address = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
    command = f"curl {address}/v1/completions{key} -H 'Content-Type: application/json' -d '{body}'"
    return f"pyllm is ready on {where} - try: {command}"


def _listener(server: ServerConfig) -> contextlib.AbstractContextManager[socket.socket]:
    return bind_unix_listener(server.uds) if server.uds else bind_listener(server.host, server.port)
