"""Runs a server: creates sockets, starts cores and API processes, and supervises them until the end.

Imports neither torch nor the web framework; `launch/entrypoints.py` has the code of the processes.
"""

import contextlib
import logging
import signal
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from pyllm.checkpoint.types import Checkpoint
from pyllm.config.credentials import Credentials
from pyllm.config.engine_settings import EngineConfig
from pyllm.config.process_config import ApiConfig, CoreConfig, StateConfig
from pyllm.config.server_settings import HeadlessConfig, ServerConfig
from pyllm.errors import ConfigError
from pyllm.launch import topology
from pyllm.launch.core_settings import placement_recording
from pyllm.launch.early_start import EarlyStart
from pyllm.launch.live_credentials import LiveCredentials
from pyllm.launch.resolve_server import resolve_server, shared_config
from pyllm.launch.server_process import (
    announcement_of,
    become_supervisor,
    claim_server,
    open_listener,
    run_supervised,
    say_ready,
)
from pyllm.launch.service_manager import ServiceManager
from pyllm.recording import check_recording_path
from pyllm.supervision.child_process import ChildProcess
from pyllm.supervision.log_level import set_log_level
from pyllm.supervision.supervised_process import ProcessLimits, SupervisedProcess
from pyllm.wire.listeners import bind_unix_listener, claim_endpoint
from pyllm.wire.messages import Restarts
from pyllm.wire.sockets import SocketFolder, is_core_address

logger = logging.getLogger(__name__)


def serve(engine: EngineConfig, server: ServerConfig) -> int:
    """Run cores, API processes and their shared state until SIGTERM or SIGINT, then drain; return the exit code.

    Raises:
        PyllmError: the server cannot start, or a process was lost for good.
    """
    become_supervisor()
    service = ServiceManager()
    server, credentials = resolve_server(server)
    live = LiveCredentials(server, credentials, service)
    signal.signal(signal.SIGUSR1, live.ask)
    with contextlib.ExitStack() as claim:
        claim.enter_context(claim_server(server))
        with open_listener(server) as listener, SocketFolder() as folder, EarlyStart(engine, listener) as early:
            # Imported here: these take as long as all else, and the early processes import meanwhile.
            from pyllm.launch.model_overrides import chat_template_notice
            from pyllm.launch.resolve import resolve_config

            engine, checkpoint = resolve_config(engine)
            if notice := chat_template_notice(checkpoint):
                logger.warning("%s", notice)
            cores = topology.core_configs(engine, checkpoint, folder, server.ready_timeout, server.shutdown_timeout)
            api = api_config(cores, server, credentials)
            processes = topology.supervised_engine(cores, set_log_level, early=early.take_core(cores[0]))
            address, line = announcement_of(
                listener,
                server,
                api.served_model_name[0],
                has_keys=bool(credentials.keys),
                can_chat=bool(checkpoint.tokenizer.chat_template) and not checkpoint.embedding.is_only_use,
                embedding=checkpoint.embedding,
            )
            groups = _groups(cores[0], processes, api, listener, live, early=early.take_api())
            early.close()

            def close_address() -> None:
                # After the API processes have closed the port, clients must be refused: while it is open here, they
                # would still connect, and wait until this process ends. Then another server may have the port.
                listener.close()
                claim.close()
                service.stopping()

            run_supervised(
                groups,
                lambda _: say_ready(service, address, line),
                server.shutdown_timeout,
                close_address,
                replicas=processes.cores,
            )
    return 0


def serve_for(
    engine: EngineConfig,
    server: ServerConfig,
    work: Callable[[str, EngineConfig], Awaitable[None]],
    check: Callable[[Checkpoint], None],
) -> bool:
    """Serve one program on a Unix socket in a private folder, without keys, until its `work` is done.

    `check` may refuse the model before it is loaded. `work` gets the socket's path and the resolved settings. Returns
    False where a signal ended it first.

    Raises:
        PyllmError: the server cannot start, or a process was lost for good. Errors of `work` and `check` are raised as
            they are.
    """
    become_supervisor()
    server, _ = resolve_server(server)
    outcome: list[Exception | None] = []
    with contextlib.ExitStack() as opened:
        folder = opened.enter_context(SocketFolder())
        listener = opened.enter_context(bind_unix_listener(f"{folder}/http"))
        early = opened.enter_context(EarlyStart(engine, listener))
        from pyllm.launch.resolve import resolve_config  # Here, as in `serve`.

        engine, checkpoint = resolve_config(engine)
        check(checkpoint)
        cores = topology.core_configs(engine, checkpoint, folder, server.ready_timeout, server.shutdown_timeout)
        processes = topology.supervised_engine(cores, set_log_level, early=early.take_core(cores[0]))

        async def run() -> None:
            try:
                await work(listener.getsockname(), engine)
                outcome.append(None)
            except Exception as error:  # noqa: BLE001  raised again below: the server has done nothing wrong
                outcome.append(error)

        live = LiveCredentials(server, Credentials(), ServiceManager(""))
        api = api_config(cores, server, live.current)
        groups = _groups(cores[0], processes, api, listener, live, early=early.take_api())
        early.close()
        run_supervised(groups, lambda _: "", server.shutdown_timeout, listener.close, run, replicas=processes.cores)
    if outcome and outcome[0] is not None:
        raise outcome[0]
    return bool(outcome)


def serve_core(engine: EngineConfig, headless: HeadlessConfig) -> int:
    """Run a headless core for `EngineClient` until SIGTERM or SIGINT, then drain; return the exit code.

    Raises:
        ConfigError: several cores, an address that is neither ipc:// nor tcp://, or tcp:// with neither keys nor
            `insecure_tcp`.
        PyllmError: the core cannot start, or was lost for good.
    """
    become_supervisor()
    if engine.parallel.data_parallel_size > 1:
        raise ConfigError(
            f"pyllm core is one core, not data_parallel_size {engine.parallel.data_parallel_size}: start several, each "
            "at an address of its own, and give all of these to EngineClient.connect"
        )
    if not is_core_address(headless.bind):
        raise ConfigError(f"cannot bind to {headless.bind!r}: give --bind ipc://PATH or tcp://HOST:PORT")
    if headless.bind.startswith("tcp://") and not headless.curve_keys:
        if not headless.insecure_tcp:
            raise ConfigError("tcp:// needs keys: give --curve-keys FOLDER (`pyllm keygen FOLDER`), or --insecure-tcp")
        may = "may use the engine, change its settings and forget its cache"
        reads = " and read all prompts" if engine.cache.enable_kv_cache_events else ""
        logger.warning("%s has no keys: anyone who reaches it %s%s", headless.bind, may, reads)
    from pyllm.launch.resolve import resolve_config

    with claim_endpoint(headless.bind), SocketFolder() as folder:
        engine, checkpoint = resolve_config(engine)
        core = CoreConfig(
            engine=engine,
            checkpoint=checkpoint,
            bind=headless.bind,
            socket_folder=folder,
            curve_keys=headless.curve_keys,
            ready_timeout=headless.ready_timeout,
            shutdown_timeout=headless.shutdown_timeout,
            fork_server=topology.fork_server_address(engine, checkpoint, folder),
        )
        service = ServiceManager()
        run_supervised(
            [*topology.supervised_engine([core], set_log_level)],
            lambda addresses: say_ready(service, addresses[0], f"pyllm core is ready on {addresses[0]}"),
            headless.shutdown_timeout,
            service.stopping,
        )
    return 0


def api_config(cores: list[CoreConfig], server: ServerConfig, credentials: Credentials) -> ApiConfig:
    core, engine = cores[0], cores[0].engine
    return ApiConfig(
        server=server,
        placement=engine.parallel.data_parallel_placement,
        checkpoint=core.checkpoint,
        served_model_name=engine.model.served_model_name,
        seed=engine.model.seed,
        log=engine.log,
        shared=shared_config(server, engine.scheduler.max_num_seqs, [each.bind for each in cores]),
        credentials=credentials,
        flight_recorder_dir=engine.recovery.flight_recorder_dir,
        max_loras=engine.lora.num_slots,
        download_dir=engine.model.download_dir,
        is_on_gpu=engine.device.device == "cuda",
        state_address=f"ipc://{core.socket_folder}/state" if server.api_server_count > 1 else "",
    )


def _groups(
    core: CoreConfig,
    engine: topology.SupervisedEngine,
    api: ApiConfig,
    listener: socket.socket,
    credentials: LiveCredentials,
    *,
    early: ChildProcess | None,
) -> list[list[SupervisedProcess]]:
    """Groups of processes, in the order in which they stop: API processes first, which let their streams finish.

    The first API process may have been started `early`.
    """
    recovery, count = core.engine.recovery, api.server.api_server_count
    limits = ProcessLimits(ready_timeout=core.ready_timeout, max_restarts=recovery.max_restarts)
    state = StateConfig(shared=api.shared, bind=api.state_address, log=api.log)

    def list_restarts() -> list[Restarts]:
        return [restarts for group in groups for process in group for restarts in process.restarts]

    news = topology.ApiNews(list_restarts, credentials)
    groups = [
        [
            topology.supervised_api(
                _api_config(api, core.engine, index), listener, limits, recovery, news, early=None if index else early
            )
            for index in range(count)
        ],
        [topology.supervised_state(state, limits, recovery)] if count > 1 else [],
        *engine,
    ]
    return groups


def _api_config(api: ApiConfig, engine: EngineConfig, index: int) -> ApiConfig:
    """The configuration of the API process of this index. Raises `ConfigError` if its recording cannot be created."""
    recording = placement_recording(engine, index)
    if recording:
        check_recording_path(Path(recording))
    return msgspec.structs.replace(api, index=index, placement_recording=recording)
