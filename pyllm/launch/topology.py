"""The processes of a server: the start of each, its configuration, and the record of its death."""

import itertools
import logging
import os
import re
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from pyllm.checkpoint.types import Checkpoint
from pyllm.config.engine_settings import SEQUENCES, EngineConfig, RecoveryConfig
from pyllm.config.process_config import (
    ApiConfig,
    CoreConfig,
    ForkServerConfig,
    SharedConfig,
    StateConfig,
    needs_torch,
)
from pyllm.config.rank_coordinates import num_ranks
from pyllm.errors import ConfigError
from pyllm.launch.core_settings import settings_of_core
from pyllm.launch.live_credentials import LiveCredentials
from pyllm.recording import check_recording_path
from pyllm.supervision import child_process, step_trace
from pyllm.supervision.child_process import ChildProcess
from pyllm.supervision.flight_recorder import FlightRecorder, config_json
from pyllm.supervision.restarts import all_restarted
from pyllm.supervision.spare import Spare
from pyllm.supervision.supervised_process import ProcessLimits, SupervisedProcess
from pyllm.wire.messages import Adapter, Restarts
from pyllm.wire.supervision_messages import MAX_ENDED, Kept

# Functions that import all code of a worker with torch, and return the function that each worker runs.
TORCH_ENTRY = "pyllm.workers.worker_process:prepare_torch"
TRANSFORMERS_ENTRY = "pyllm.workers.worker_process:prepare_transformers"

logger = logging.getLogger(__name__)


def spare_core(max_num_seqs: int = SEQUENCES) -> ChildProcess:
    """A core that has imported everything, as has its first worker; `fits_spare` says for which models it is."""
    return child_process.spawn("a spare core", "model_core", memory_size=step_trace.size(max_num_seqs))


def fits_spare(core: CoreConfig, max_num_seqs: int = SEQUENCES) -> bool:
    """Whether `spare_core` can run it: workers are processes without torch and host memory."""
    engine = core.engine
    is_light = engine.parallel.distributed_executor_backend == "mp" and not core.fork_server
    return is_light and not engine.cache.kv_offloading_size and engine.scheduler.max_num_seqs == max_num_seqs


def supervised_core(
    config: CoreConfig,
    on_log_level: Callable[[str], None] = lambda level: None,
    model: str = "",
    spares: Spare | None = None,
    early: ChildProcess | None = None,
) -> SupervisedProcess:
    """Supervises an EngineCore process. `on_log_level` is called when a client has changed the core's log level.

    Where a server has several models, `model` is in the process's name, and `spares` are for all of their cores. The
    first core may be one that was started `early`.
    """
    recovery = config.engine.recovery
    limits = ProcessLimits(
        ready_timeout=config.ready_timeout,
        max_restarts=recovery.max_restarts,
        warm_spare=recovery.warm_spares and spares is None,
    )
    name = f"core {config.index}" + (f" of {model}" if model else "")
    size = step_trace.size(config.engine.scheduler.max_num_seqs)
    cores, record = SuccessiveCores(config, on_log_level), death_recorder(recovery, config)
    memories = HostMemories(config)

    def spawn() -> ChildProcess:
        nonlocal early
        process, early = early, None
        if process is None and spares is not None and fits_spare(config):
            process = spares.take()
        if process is None:
            process = child_process.spawn(name, "core", *memories.files, memory_size=size)
        process.name = name
        process.on_kept = cores.keep
        return process

    def note_death(process: ChildProcess) -> None:
        record(process)
        cores.lose_workers(process.exit_summary())

    return SupervisedProcess(spawn, cores.configure, limits, note_death, release=memories.close)


def supervised_fork_server(core: CoreConfig, entry: str = "") -> SupervisedProcess:
    """Supervises the fork server of the workers of this core, and of the other cores here; it outlives the cores.

    `entry` is by default that of the workers which the model and the device need.
    """
    recovery = core.engine.recovery
    limits = ProcessLimits(ready_timeout=core.ready_timeout, max_restarts=recovery.max_restarts)
    config = ForkServerConfig(bind=core.fork_server, entry=entry or worker_entry(core), log=core.engine.log)
    return SupervisedProcess(
        lambda: child_process.spawn("the fork server", "fork_server"),
        lambda _: config,
        limits,
        death_recorder(recovery, config),
    )


def worker_entry(core: CoreConfig) -> str:
    """The function that imports what the workers of this core need, and no more."""
    return TORCH_ENTRY if core.checkpoint.spec.transformers is None else TRANSFORMERS_ENTRY


class SupervisedEngine(NamedTuple):
    """The cores of one engine, which can serve while one is left, and their fork server, if they have one."""

    cores: list[SupervisedProcess]
    fork_servers: list[SupervisedProcess]


def supervised_engine(
    configs: Sequence[CoreConfig],
    on_log_level: Callable[[str], None] = lambda level: None,
    model: str = "",
    spares: Spare | None = None,
    early: ChildProcess | None = None,
) -> SupervisedEngine:
    """The processes of `core_configs`; the other arguments are those of `supervised_core`, `early` for the first."""
    first, *others = configs
    return SupervisedEngine(
        [
            supervised_core(first, on_log_level, model, spares, early),
            *(supervised_core(config, on_log_level, model, spares) for config in others),
        ],
        [supervised_fork_server(first)] if first.fork_server else [],
    )


def core_configs(
    engine: EngineConfig, checkpoint: Checkpoint, folder: str, ready_timeout: float, shutdown_timeout: float
) -> list[CoreConfig]:
    """The configuration of each core of an engine, on sockets in a private folder; all share a fork server, if any."""
    return [
        CoreConfig(
            engine=settings_of_core(engine, index),
            checkpoint=checkpoint,
            bind=f"ipc://{folder}/core-{index}",
            socket_folder=folder,
            ready_timeout=ready_timeout,
            shutdown_timeout=shutdown_timeout,
            fork_server=fork_server_address(engine, checkpoint, folder),
            index=index,
        )
        for index in range(engine.parallel.data_parallel_size)
    ]


def fork_server_address(engine: EngineConfig, checkpoint: Checkpoint, folder: str) -> str:
    """The socket path of a core's fork server, in the private folder; empty unless worker processes here need torch.

    Importing torch takes seconds; what the other workers import takes less than a core's start.
    """
    is_needed = engine.parallel.distributed_executor_backend == "mp" and needs_torch(engine, checkpoint)
    return f"{folder}/forks" if is_needed else ""


def supervised_state(config: StateConfig, limits: ProcessLimits, recovery: RecoveryConfig) -> SupervisedProcess:
    """Supervises the process that holds the shared state of the API processes."""
    successive = SuccessiveStates(config)

    def spawn() -> ChildProcess:
        process = child_process.spawn("the shared state", "state")
        process.on_kept = successive.keep
        return process

    return SupervisedProcess(spawn, successive.configure, limits, death_recorder(recovery, config))


class ApiNews(NamedTuple):
    """Sources of the news that every API process gets while it runs."""

    list_restarts: Callable[[], Sequence[Restarts]]
    credentials: LiveCredentials


def supervised_api(
    config: ApiConfig,
    listener: socket.socket,
    limits: ProcessLimits,
    recovery: RecoveryConfig,
    news: "ApiNews",
    *,
    early: ChildProcess | None = None,
) -> SupervisedProcess:
    """Supervises an API process that accepts connections on `listener`, and gets `news`; the first may be `early`."""
    # All of them accept on one socket, and an idle one is first: 2,000 connections were split 35 to 65 between two
    # processes, in bursts or one by one. With a socket each (SO_REUSEPORT), the kernel would ignore the load: clients
    # would wait for a busy or dead process while the others could serve them.
    name, successive = f"API process {config.index}", SuccessiveApis(config, news.credentials)

    def spawn() -> ChildProcess:
        nonlocal early
        process, early = early or spawn_api(name, listener), None
        process.list_restarts = news.list_restarts
        process.news = news.credentials.news
        process.on_reload_asked = news.credentials.ask
        process.on_kept = successive.keep
        return process

    return SupervisedProcess(spawn, successive.configure, limits, death_recorder(recovery, config))


def spawn_api(name: str, listener: socket.socket) -> ChildProcess:
    """An API process that accepts connections on `listener`; it imports everything before it has its configuration."""
    return child_process.spawn(name, "api", listener.fileno())


class SuccessiveCores:
    """The configuration of each core in turn: the first as given, the others as its successors.

    Holds the state that each core leaves to the next. `on_log_level` is called when a client has changed the log level.
    """

    def __init__(self, config: CoreConfig, on_log_level: Callable[[str], None] = lambda level: None) -> None:
        self._config = config
        self._on_log_level = on_log_level
        self._numbers = itertools.count()
        self._settings: dict[str, Any] = {}
        self._ended: deque[dict[str, Any]] = deque(maxlen=MAX_ENDED)
        self._workers: tuple[Restarts, ...] = ()
        self._adapters: tuple[Adapter, ...] | None = None
        self._pause: str | None = None
        self._weights: bytes | None = None

    def configure(self, address: str) -> CoreConfig:
        """The configuration of the next core. `address` is that of the last core; empty for the first."""
        number, config = next(self._numbers), self._config
        scheduler = config.engine.scheduler
        if scheduler.scheduler_recording and number:  # Each core has its own recording.
            recording = _next_recording(scheduler.scheduler_recording, number, "core")
            scheduler = msgspec.structs.replace(scheduler, scheduler_recording=recording)
        engine = msgspec.structs.replace(config.engine, scheduler=scheduler)
        kept = Kept()
        if number:
            kept = Kept(
                self._settings,
                tuple(self._ended),
                self._workers,
                adapters=self._adapters,
                pause=self._pause,
                weights=self._weights,
            )
        # With a wildcard port, clients know the port that the first core got.
        bind = address or config.bind
        return msgspec.structs.replace(config, engine=engine, bind=bind, is_successor=number > 0, kept=kept)

    def keep(self, kept: Kept) -> None:
        """Keep the state that a core reports for the next one."""
        self._ended.extend(kept.ended)
        if kept.workers is not None:
            self._workers = kept.workers
        if kept.adapters is not None:
            self._adapters = kept.adapters
        if kept.pause is not None:
            self._pause = kept.pause
        if kept.weights is not None:
            self._weights = kept.weights
        if kept.settings is not None:
            self._settings = kept.settings
            if "log_level" in kept.settings:
                self._on_log_level(kept.settings["log_level"])

    def lose_workers(self, reason: str) -> None:
        """Note that a core has ended, and its workers with it: the next core restarts them."""
        if self._config.engine.parallel.distributed_executor_backend != "uni":
            size = num_ranks(self._config.engine.parallel)
            self._workers = all_restarted(self._workers, size, time.monotonic(), reason)


class HostMemories:
    """The host memory for a core's KV blocks: a memfd for each rank, which outlives the rank and the core.

    There are none without a host pool, or without worker processes here. A rank sets its file's size.
    """

    def __init__(self, config: CoreConfig) -> None:
        engine = config.engine
        has_them = engine.parallel.distributed_executor_backend == "mp" and engine.cache.kv_offloading_size
        ranks = range(num_ranks(engine.parallel)) if has_them else ()
        self.files = [os.memfd_create(f"pyllm host blocks of rank {rank}") for rank in ranks]

    def close(self) -> None:
        """Close the files; running processes keep theirs open until they end."""
        while self.files:
            os.close(self.files.pop())


class SuccessiveStates:
    """The configuration of each shared state in turn: it begins with the last cores of its predecessor."""

    def __init__(self, config: StateConfig) -> None:
        self._config = config

    def configure(self, _: str) -> StateConfig:
        """The configuration of the next shared state."""
        return self._config

    def keep(self, kept: Kept) -> None:
        """Keep the cores that a shared state reports for the next one."""
        self._config = msgspec.structs.replace(self._config, shared=_with_cores(self._config.shared, kept))


class SuccessiveApis:
    """The configuration of each API process in turn: a recording of its own, the last cores of its predecessor, and
    the current credentials.
    """

    def __init__(self, config: ApiConfig, credentials: LiveCredentials) -> None:
        self._config = config
        self._credentials = credentials
        self._numbers = itertools.count()

    def configure(self, _: str) -> ApiConfig:
        """The configuration of the next API process."""
        number = next(self._numbers)
        config = msgspec.structs.replace(self._config, credentials=self._credentials.current)
        if not config.placement_recording or not number:
            return config
        recording = _next_recording(config.placement_recording, number, "API process")
        return msgspec.structs.replace(config, placement_recording=recording)

    def keep(self, kept: Kept) -> None:
        """Keep the cores that an API process reports for the next one."""
        self._config = msgspec.structs.replace(self._config, shared=_with_cores(self._config.shared, kept))


def _with_cores(shared: SharedConfig, kept: Kept) -> SharedConfig:
    return shared if kept.cores is None else msgspec.structs.replace(shared, cores=kept.cores)


def _next_recording(path: str, number: int, process: str) -> str:
    """The path of a process's recording; empty, for no recording, where the file cannot be created."""
    while os.path.lexists(f"{path}.{number}"):  # of an earlier run
        number += 1
    try:
        check_recording_path(Path(f"{path}.{number}"))
    except ConfigError as error:
        logger.warning("the next %s is not recorded: %s", process, error)
        return ""
    return f"{path}.{number}"


def death_recorder(recovery: RecoveryConfig, config: msgspec.Struct) -> Callable[[ChildProcess], None]:
    """A function that records the death of a child process; `config` is the child's configuration."""
    recorder = FlightRecorder(Path(recovery.flight_recorder_dir))

    def record(process: ChildProcess) -> None:
        report: dict[str, Any] = {"death": process.exit_summary(), "stage": process.stage, "pid": process.pid}
        name = re.sub(r"[^\w.-]", "-", process.name)
        report |= step_trace.last_steps(process.memory)
        parts = {"report.json": msgspec.json.encode(report), "config.json": config_json(config)}
        recorder.record(name, parts | {f"{name}.log": process.log})

    return record
