"""Settings of one core or API process of several: addresses and files that no two may share. Starts nothing.

Core 0 has the addresses and files of the settings; those of other cores are derived from these and their index.
"""

import re

import msgspec

from pyllm.config.engine_settings import EngineConfig
from pyllm.errors import ConfigError

HIGHEST_PORT = 65535


def settings_of_core(engine: EngineConfig, index: int) -> EngineConfig:
    """The engine's settings, with the addresses of KV events and the recording's file of one core.

    Raises:
        ConfigError: the port would be above 65535.
    """
    if index == 0:
        return engine
    events, recording = engine.kv_events, engine.scheduler.scheduler_recording
    names = ("kv_events_endpoint", "kv_events_replay_endpoint")
    addresses = {name: address_of_core(getattr(events, name), index) for name in names}
    return msgspec.structs.replace(
        engine,
        kv_events=msgspec.structs.replace(events, **addresses),
        scheduler=msgspec.structs.replace(
            engine.scheduler, scheduler_recording=recording and f"{recording}.core-{index}"
        ),
    )


def placement_recording(engine: EngineConfig, index: int) -> str:
    """The file in which an API process records the placement of requests; empty if it records none."""
    parallel, recording = engine.parallel, engine.scheduler.scheduler_recording
    chooses = parallel.data_parallel_size > 1 and parallel.data_parallel_placement == "prefix"
    return f"{recording}.placement-{index}" if recording and chooses else ""


def address_of_core(address: str, index: int) -> str:
    """The ZeroMQ address of a core, by vLLM's rule: the following ports of `tcp://`, else another name.

    A wildcard port is left unchanged.

    Raises:
        ConfigError: the port would be above 65535.
    """
    if not address or index == 0:
        return address
    if not address.startswith("tcp://"):
        return f"{address}_dp{index}"
    host, _, port = address.rpartition(":")
    if not re.fullmatch(r"\d+", port) or int(port) == 0:
        return address
    if int(port) + index > HIGHEST_PORT:
        raise ConfigError(
            f"{address} is of core 0, and core {index} would need port {int(port) + index}: give a port of at most "
            f"{HIGHEST_PORT - index}, or lower --data-parallel-size"
        )
    return f"{host}:{int(port) + index}"
