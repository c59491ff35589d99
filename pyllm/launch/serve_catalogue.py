"""Runs a server of several models, which are loaded when requests name them: `pyllm serve --models`.

Imports neither torch nor the web framework. `launch/model_processes.py` loads models that `frontend/catalogue` wants.
"""

import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from pyllm.config.catalogue_settings import CatalogueConfig, CatalogueModels, split_options
from pyllm.config.credentials import Credentials
from pyllm.config.engine_settings import RecoveryConfig
from pyllm.config.option_reading import config_part, engine_config
from pyllm.config.process_config import CatalogueApiConfig, CatalogueNews, CoreConfig
from pyllm.config.server_settings import ServerConfig
from pyllm.errors import ConfigError
from pyllm.launch import topology
from pyllm.launch.live_credentials import LiveCredentials
from pyllm.launch.memory_check import resident_bytes
from pyllm.launch.model_overrides import chat_template_notice
from pyllm.launch.model_processes import LoadableModel, MemoryRoom, ModelProcesses
from pyllm.launch.resolve import resolve_config
from pyllm.launch.resolve_server import resolve_server
from pyllm.launch.serve import api_config
from pyllm.launch.server_process import (
    announcement_of,
    become_supervisor,
    claim_server,
    open_listener,
    run_supervised,
    say_ready,
)
from pyllm.launch.service_manager import ServiceManager
from pyllm.machine.memory import host_memory
from pyllm.supervision import child_process
from pyllm.supervision.child_process import ChildProcess
from pyllm.supervision.flight_recorder import resolve_folder
from pyllm.supervision.log_level import set_log_level
from pyllm.supervision.spare import Spare
from pyllm.supervision.supervised_process import ProcessLimits, SupervisedProcess
from pyllm.wire.messages import Restarts
from pyllm.wire.sockets import SocketFolder
from pyllm.wire.supervision_messages import Kept

# Part of the available memory that models may take by default; the rest is for the server and for packed weights.
MEMORY_SHARE = 0.8

logger = logging.getLogger(__name__)


def serve_catalogue(
    catalogue: CatalogueModels, bounds: CatalogueConfig, shared: Mapping[str, Any], server: ServerConfig
) -> int:
    """Run the models that are asked for and their API process until SIGTERM or SIGINT, then drain.

    `shared` are the engine's options of the command line, of which the catalogue's models have their own copies.
    Returns the exit code.

    Raises:
        PyllmError: the server cannot start, or its API process was lost for good.
    """
    become_supervisor()
    service = ServiceManager()
    server, credentials = resolve_server(server)
    if server.api_server_count > 1:
        raise ConfigError(
            "api_server_count: a catalogue has one API process, which decides what is loaded: leave it out"
        )
    engine = engine_config(dict(shared))
    crash_folder = resolve_folder(engine.recovery.flight_recorder_dir)
    recovery = msgspec.structs.replace(engine.recovery, flight_recorder_dir=crash_folder)
    live = LiveCredentials(server, credentials, service)
    signal.signal(signal.SIGUSR1, live.ask)
    budget = bounds.memory_budget or int(MEMORY_SHARE * min(memory.available for memory in host_memory()))
    with contextlib.ExitStack() as claim:
        claim.enter_context(claim_server(server))
        with open_listener(server) as listener, SocketFolder() as folder:
            files = ModelFiles(catalogue, server, folder, budget)
            spares = Spare(topology.spare_core) if engine.recovery.warm_spares else None
            models = ModelProcesses(
                [entry.name for entry in catalogue.entries],
                files.read,
                partial(_supervised, spares),
                MemoryRoom(budget, bounds.max_loaded_models),
                spares=spares,
                pinned=[entry.name for entry in catalogue.entries if entry.pinned],
            )
            config = CatalogueApiConfig(
                server=server,
                entries=catalogue.entries,
                aliases=catalogue.aliases,
                memory_budget=budget,
                max_loaded_models=bounds.max_loaded_models,
                log=engine.log,
                credentials=credentials,
                flight_recorder_dir=crash_folder,
                download_dir=engine.model.download_dir,
            )
            address, line = announcement_of(
                listener, server, catalogue.entries[0].name, has_keys=bool(credentials.keys), can_chat=True
            )

            def list_restarts() -> list[Restarts]:
                return [restarts for process in (api, models) for restarts in process.restarts]

            successive = SuccessiveCatalogues(config, live, models)
            api = _supervised_api(successive, listener, recovery, server.ready_timeout, list_restarts)

            def close_address() -> None:
                # As in `serve`: clients of a server that has closed its port must be refused.
                listener.close()
                claim.close()
                service.stopping()

            run_supervised(
                [[api], [models]],
                lambda _: say_ready(service, address, line),
                server.shutdown_timeout,
                close_address,
            )
    return 0


class ModelFiles:
    """Reads the models' files, each time that one is to be loaded. Their sockets are in folders of `folder`.

    Without a size of its own, a KV cache is made for an equal part of `budget`.
    """

    def __init__(self, catalogue: CatalogueModels, server: ServerConfig, folder: str, budget: int) -> None:
        self._catalogue = catalogue
        self._server = server
        self._folder = folder
        self._memory = budget // len(catalogue.entries)

    def read(self, name: str) -> LoadableModel:
        """The model of this name. Runs on a thread.

        Raises:
            ConfigError: it cannot be read, or two settings conflict.
        """
        index = next(at for at, entry in enumerate(self._catalogue.entries) if entry.name == name)
        of_engine, of_server = split_options(self._catalogue.options[name])
        engine, checkpoint = resolve_config(engine_config(of_engine), memory=self._memory)
        if notice := chat_template_notice(checkpoint):
            logger.warning("%s", notice)
        own = config_part(ServerConfig, of_server)
        server = msgspec.structs.replace(self._server, **{option: getattr(own, option) for option in of_server})
        folder = f"{self._folder}/{index}"
        os.makedirs(folder, mode=0o700, exist_ok=True)
        cores = topology.core_configs(engine, checkpoint, folder, server.ready_timeout, server.shutdown_timeout)
        # Keys are the server's: models know none.
        return LoadableModel(cores, api_config(cores, server, Credentials()), resident_bytes(engine, checkpoint))


def _supervised(spares: Spare | None, cores: list[CoreConfig]) -> topology.SupervisedEngine:
    return topology.supervised_engine(cores, set_log_level, cores[0].engine.model.served_model_name[0], spares)


class SuccessiveCatalogues:
    """The configuration of each API process of a catalogue in turn, and the news that all of them get."""

    def __init__(self, config: CatalogueApiConfig, credentials: LiveCredentials, models: ModelProcesses) -> None:
        self.config = config
        self.credentials = credentials
        self.models = models
        self._told: CatalogueNews | None = None
        self._news = b""

    def configure(self, _: str) -> CatalogueApiConfig:
        """The configuration of the next API process."""
        return msgspec.structs.replace(
            self.config,
            credentials=self.credentials.current,
            wanted=self.models.wanted,
            last_wish=self.models.last_wish,
        )

    def keep(self, kept: Kept) -> None:
        """Load and unload models as the API process says, and keep its aliases."""
        if (choices := kept.catalogue) is None:
            return
        if choices.aliases is not None:
            self.config = msgspec.structs.replace(self.config, aliases=choices.aliases)
        self.models.want(choices.wanted)

    def news(self) -> bytes:
        """The current credentials and models, encoded: another object where they have changed, or are read again."""
        is_reload = self.credentials.is_asked
        self.credentials.news()
        news = CatalogueNews(credentials=self.credentials.current, models=self.models.news)
        if is_reload or news != self._told:
            self._told, self._news = news, msgspec.msgpack.encode(news)
        return self._news


def _supervised_api(
    successive: "SuccessiveCatalogues",
    listener: socket.socket,
    recovery: RecoveryConfig,
    ready_timeout: float,
    list_restarts: Callable[[], Sequence[Restarts]],
) -> SupervisedProcess:
    """Supervises the API process of a catalogue, which gets news of its models at once."""
    limits = ProcessLimits(ready_timeout=ready_timeout, max_restarts=recovery.max_restarts)

    def spawn() -> ChildProcess:
        process = child_process.spawn("the API process", "catalogue", listener.fileno())
        process.list_restarts = list_restarts
        process.news = successive.news
        process.on_reload_asked = successive.credentials.ask
        process.on_kept = successive.keep
        successive.models.on_news = process.send_news
        return process

    return SupervisedProcess(spawn, successive.configure, limits, topology.death_recorder(recovery, successive.config))
