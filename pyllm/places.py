"""The places of a server's processes: what each is started as, what it is told, and what its death leaves behind."""

import itertools
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from pyllm import black_box, supervisor
from pyllm.config import EngineConfig, RecoveryConfig
from pyllm.core.recording import check_new
from pyllm.errors import ConfigError
from pyllm.flight_recorder import FlightRecorder, config_json
from pyllm.place import Place, PlaceLimits
from pyllm.process_config import ApiConfig, CoreConfig, NurseryConfig, StateConfig
from pyllm.supervisor import Process

# What workers are made of: a function that imports it all, and gives what each of them runs.
WORKER_ENTRY = "pyllm.workers.process:prepare"

logger = logging.getLogger(__name__)


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


def state_place(config: StateConfig, limits: PlaceLimits, recovery: RecoveryConfig) -> Place:
    """The place of the process that holds what API processes share."""
    record = _recording(recovery, config)
    return Place(lambda: supervisor.spawn("the shared state", "state"), lambda _: config, limits, record)


def api_place(config: ApiConfig, listener: socket.socket, limits: PlaceLimits, recovery: RecoveryConfig) -> Place:
    """The place of an API process that accepts on this socket."""
    # All of them accept on the one socket, and who is idle is first: 2,000 connections went 35 to 65 to two processes,
    # in bursts or one by one. Sockets of their own (SO_REUSEPORT) would be balanced by the kernel, but blindly: a
    # process that is busy, or gone, would keep those clients waiting whom the others could serve.
    name, record = f"API process {config.index}", _recording(recovery, config)
    return Place(lambda: supervisor.spawn(name, "api", listener.fileno()), lambda _: config, limits, record)


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
