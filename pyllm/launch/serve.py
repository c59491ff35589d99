"""Runs a server: creates sockets, starts cores and API processes, and supervises them until the end.

Imports neither torch nor the web framework; `launch/entrypoints.py` has the code of the processes.
"""

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

import msgspec
from setproctitle import setproctitle

from pyllm.checkpoint.types import Checkpoint
from pyllm.config.credentials import Credentials
from pyllm.config.engine_settings import EngineConfig
from pyllm.config.process_config import ApiConfig, CoreConfig, StateConfig
from pyllm.config.server_settings import HeadlessConfig, ServerConfig
from pyllm.errors import ConfigError
from pyllm.launch import topology
from pyllm.launch.core_settings import placement_recording
from pyllm.launch.live_credentials import LiveCredentials
from pyllm.launch.model_overrides import chat_template_notice
from pyllm.launch.resolve import resolve_config, resolve_server, shared_config
from pyllm.launch.service_manager import ServiceManager
from pyllm.recording import check_recording_path
from pyllm.supervision import line_writer
from pyllm.supervision.json_log import is_json
from pyllm.supervision.log_level import set_log_level
from pyllm.supervision.parent_link import keep_exit_codes
from pyllm.supervision.server_processes import supervise
from pyllm.supervision.supervised_process import ProcessLimits, SupervisedProcess
from pyllm.wire.listeners import bind_listener, bind_unix_listener, claim_address, claim_endpoint, claim_path
from pyllm.wire.messages import Restarts
from pyllm.wire.sockets import SocketFolder, is_core_address

logger = logging.getLogger(__name__)


def serve(engine: EngineConfig, server: ServerConfig) -> int:
    """Run cores, API processes and their shared state until SIGTERM or SIGINT, then drain; return the exit code.

    Raises:
        PyllmError: the server cannot start, or a process was lost for good.
    """
    _become_supervisor()
    service = ServiceManager()
    server, credentials = resolve_server(server)
    live = LiveCredentials(server, credentials, service)
    signal.signal(signal.SIGUSR1, live.ask)
    with contextlib.ExitStack() as claim:
        claim.enter_context(_claim(server))
        engine, checkpoint = resolve_config(engine)
        if notice := chat_template_notice(checkpoint):
            logger.warning("%s", notice)
        with _listener(server) as listener, SocketFolder() as folder:
            cores = topology.core_configs(engine, checkpoint, folder, server.ready_timeout, server.shutdown_timeout)
            api = _api(cores, server, credentials)
            processes = topology.supervised_engine(cores, set_log_level)
            address, line = _announcement(listener, api)
            groups = _groups(cores[0], processes, api, listener, live)

            def close_address() -> None:
                # After the API processes have closed the port, clients must be refused: while it is open here, they
                # would still connect, and wait until this process ends. Then another server may have the port.
                listener.close()
                claim.close()
                service.stopping()

            _supervise(
                groups,
                lambda _: _ready(service, address, line),
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
    _become_supervisor()
    server, _ = resolve_server(server)
    engine, checkpoint = resolve_config(engine)
    check(checkpoint)
    outcome: list[Exception | None] = []
    with SocketFolder() as folder, bind_unix_listener(f"{folder}/http") as listener:
        cores = topology.core_configs(engine, checkpoint, folder, server.ready_timeout, server.shutdown_timeout)
        processes = topology.supervised_engine(cores, set_log_level)

        async def run() -> None:
            try:
                await work(listener.getsockname(), engine)
                outcome.append(None)
            except Exception as error:  # noqa: BLE001  raised again below: the server has done nothing wrong
                outcome.append(error)

        live = LiveCredentials(server, Credentials(), ServiceManager(""))
        groups = _groups(cores[0], processes, _api(cores, server, live.current), listener, live)
        _supervise(groups, lambda _: "", server.shutdown_timeout, listener.close, run, replicas=processes.cores)
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
    _become_supervisor()
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
        _supervise(
            [*topology.supervised_engine([core], set_log_level)],
            lambda addresses: _ready(service, addresses[0], f"pyllm core is ready on {addresses[0]}"),
            headless.shutdown_timeout,
            service.stopping,
        )
    return 0


def _api(cores: list[CoreConfig], server: ServerConfig, credentials: Credentials) -> ApiConfig:
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
        state_address=f"ipc://{core.socket_folder}/state" if server.api_server_count > 1 else "",
    )


def _groups(
    core: CoreConfig,
    engine: topology.SupervisedEngine,
    api: ApiConfig,
    listener: socket.socket,
    credentials: LiveCredentials,
) -> list[list[SupervisedProcess]]:
    """Groups of processes, in the order in which they stop: API processes first, which let their streams finish."""
    recovery, count = core.engine.recovery, api.server.api_server_count
    limits = ProcessLimits(ready_timeout=core.ready_timeout, max_restarts=recovery.max_restarts)
    state = StateConfig(shared=api.shared, bind=api.state_address, log=api.log)

    def list_restarts() -> list[Restarts]:
        return [restarts for group in groups for process in group for restarts in process.restarts]

    news = topology.ApiNews(list_restarts, credentials)
    groups = [
        [
            topology.supervised_api(_api_config(api, core.engine, index), listener, limits, recovery, news)
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


def _become_supervisor() -> None:
    setproctitle("pyllm::serve")
    keep_exit_codes()
    # Service managers send SIGUSR1 for a reload; by default it would end the process.
    signal.signal(signal.SIGUSR1, lambda *_: logger.info("SIGUSR1: this process has nothing to read again"))


def _supervise(
    groups: list[list[SupervisedProcess]],
    announcement: Callable[[list[str]], str],
    shutdown_timeout: float,
    on_ending: Callable[[], None] = lambda: None,
    work: Callable[[], Awaitable[None]] | None = None,
    *,
    replicas: Collection[SupervisedProcess] = (),
) -> None:
    try:
        asyncio.run(supervise(groups, announcement, shutdown_timeout, on_ending, work, replicas=replicas))
    finally:
        line_writer.stderr().finish()  # Flush: the last line gives the reason of an end.


def _ready(service: ServiceManager, address: str, line: str) -> str:
    """Report that the server is ready; returns the line to print, or nothing where a JSON log has a record instead."""
    service.ready()
    if not is_json():
        return line
    logger.info("pyllm is ready on %s", address, extra={"fields": {"event": "ready", "address": address}})
    return ""


def _announcement(listener: socket.socket, api: ApiConfig) -> tuple[str, str]:
    """The address, and the text printed when the server is ready: a request to try, and the page in another line."""
    prompt = "The capital of France is"
    body = msgspec.json.encode({"model": api.served_model_name[0], "prompt": prompt, "max_tokens": 16}).decode()
    key = " -H 'Authorization: Bearer KEY'" if api.credentials.keys else ""
    scheme = "https" if api.server.ssl_certfile else "http"
    if listener.family == socket.AF_UNIX:
        path = listener.getsockname()
        where, address = f"unix:{path}", f"--unix-socket {path} {scheme}://localhost"
    else:
        host, port = listener.getsockname()[:2]
        where = address = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
    command = f"curl {address}/v1/completions{key} -H 'Content-Type: application/json' -d '{body}'"
    contents = "chat, routes and engine" if api.checkpoint.tokenizer.chat_template else "routes and engine"
    page = f"\n  {contents} in a browser: {where}{api.server.root_path}/"
    line = f"pyllm is ready on {where} - try: {command}{'' if listener.family == socket.AF_UNIX else page}"
    return where, line


def _claim(server: ServerConfig) -> contextlib.AbstractContextManager[object]:
    """Holds the server's address until it listens there; port 0 needs no claim."""
    if server.uds:
        return claim_path(server.uds)
    return claim_address(f"{server.host}:{server.port}") if server.port else contextlib.nullcontext()


def _listener(server: ServerConfig) -> contextlib.AbstractContextManager[socket.socket]:
    return bind_unix_listener(server.uds) if server.uds else bind_listener(server.host, server.port)
