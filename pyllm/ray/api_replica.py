"""A replica of the API's deployment: the routes of `pyllm serve`, for the current cores of the application.

Follows the registry; knows neither the start of cores nor their placement by Ray Serve.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

import msgspec

from pyllm.config.engine_settings import EngineConfig
from pyllm.config.process_config import ApiConfig
from pyllm.config.server_settings import ServerConfig
from pyllm.errors import PyllmError, StartError
from pyllm.frontend import embedded_app
from pyllm.launch.resolve import resolve_settings
from pyllm.launch.resolve_server import resolve_server, shared_config
from pyllm.ray.core_registry import CoreRegistration, CoreRegistry, LiveCores
from pyllm.ray.core_replica import settings_hash
from pyllm.wire import curve
from pyllm.wire.sockets import SocketFolder

POLL_INTERVAL = 0.5  # seconds between two looks at the registry
REMOVE_TIMEOUT = 1.0  # seconds for running requests to end on a core that leaves, before they move to others

logger = logging.getLogger(__name__)


class ApiReplica:
    """The API of one replica. Ray Serve calls its methods."""

    def __init__(self, engine: EngineConfig, server: ServerConfig) -> None:
        self._engine = engine
        self._server = server
        self._live = LiveCores()
        self._folder: SocketFolder | None = None
        self._started: embedded_app.EmbeddedApp | None = None
        self._changing: dict[str, asyncio.Task[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Wait for a core, and make the application.

        Raises:
            PyllmError: no core came in time, or a setting is wrong.
        """
        from ray import serve

        self._registry = CoreRegistry(serve.get_replica_context().app_name)
        server, credentials = resolve_server(self._server)
        parallel = msgspec.structs.replace(self._engine.parallel, distributed_executor_backend="ray")
        # This process has neither the model's ranks nor their devices.
        engine = msgspec.structs.replace(self._engine, parallel=parallel)
        engine, checkpoint = await asyncio.to_thread(resolve_settings, engine)
        self._folder = SocketFolder()
        keys = await self._registry.keys()
        curve.write_client_keys(Path(self._folder.path, "keys"), keys.client)
        server = msgspec.structs.replace(server, curve_keys=f"{self._folder.path}/keys")
        config = ApiConfig(
            server=server,
            checkpoint=checkpoint,
            served_model_name=engine.model.served_model_name,
            placement=engine.parallel.data_parallel_placement,
            seed=engine.model.seed,
            shared=shared_config(server, engine.scheduler.max_num_seqs, await self._first()),
            credentials=credentials,
            max_loras=engine.lora.num_slots,
        )
        self._started = await embedded_app.EmbeddedApp.start(config)
        self._tasks = [asyncio.ensure_future(self._follow()), asyncio.ensure_future(self._embedded.tend())]

    @property
    def app(self) -> Any:
        """The ASGI application."""
        return self._embedded.app

    def check(self) -> None:
        """Raise an error if this replica can no longer serve."""
        if not self._embedded.alive:
            raise StartError("the client of the cores has ended; another replica takes this one's place")
        for task in self._tasks:
            if task.done():
                task.result()

    async def stop(self) -> None:
        """End the tasks and the client, if started; Ray Serve has waited for the requests."""
        for task in (*self._tasks, *self._changing.values()):
            task.cancel()
        if self._started is not None:
            self._started.close()
        if self._folder is not None:
            self._folder.close()

    @property
    def _embedded(self) -> embedded_app.EmbeddedApp:
        assert self._started is not None, "start comes first"
        return self._started

    async def _first(self) -> list[str]:
        """Wait for a core with this replica's settings; returns the addresses of all such cores."""
        settings = settings_hash(self._engine)
        try:
            async with asyncio.timeout(self._server.ready_timeout):
                while True:
                    self._live.look(await self._registry.entries(), time.monotonic())
                    found = [entry.address for entry in self._live.beating() if entry.settings == settings]
                    if found:
                        return found
                    await asyncio.sleep(POLL_INTERVAL)
        except TimeoutError:
            text = f"no core of the application was ready within {self._server.ready_timeout:g} s"
            raise StartError(f"{text}; see the log of the deployment Cores") from None

    async def _follow(self) -> None:
        """Add new cores of the same model, and remove those that leave or fall silent."""
        while True:
            await asyncio.sleep(POLL_INTERVAL)
            try:
                self._live.look(await self._registry.entries(), time.monotonic())
                for name in self._live.silent(time.monotonic()):
                    await self._registry.remove(name)  # A core that still lives registers again.
            except Exception as error:  # noqa: BLE001 - Ray raises many kinds while its head is away
                logger.warning("the registry of cores does not answer: %s", error)
                continue
            self._change(self._live.live(time.monotonic()))

    def _change(self, entries: Mapping[str, CoreRegistration]) -> None:
        wanted = {entry.address for entry in entries.values() if entry.fingerprint == self._embedded.fingerprint}
        listed = {core.address: core.index for core in self._embedded.cores.status() if not core.is_leaving}
        for address in wanted - listed.keys() - self._changing.keys():
            self._begin(address, self._add(address))
        # The last core stays until another one is there, for which its streams wait.
        for address in [*listed.keys() - wanted - self._changing.keys()][: len(listed) - 1]:
            self._begin(address, self._remove(address, listed[address]))

    def _begin(self, address: str, change: Coroutine[Any, Any, None]) -> None:
        task = self._changing[address] = asyncio.ensure_future(change)
        task.add_done_callback(lambda _: self._changing.pop(address))

    async def _add(self, address: str) -> None:
        try:
            index = await self._embedded.cores.add(address)
            logger.info("core %d at %s takes requests", index, address)
        except PyllmError as error:
            logger.warning("the core at %s is not used: %s", address, error)

    async def _remove(self, address: str, index: int) -> None:
        try:
            await self._embedded.cores.remove(index, REMOVE_TIMEOUT)
            logger.info("core %d at %s leaves", index, address)
        except PyllmError as error:
            logger.warning("the core at %s is kept: %s", address, error)


def deployment_class() -> Any:
    """The class of the replicas behind Ray Serve's HTTP proxies."""
    from ray import serve

    @serve.ingress()
    class Api:
        """The API of pyllm. `cores` is the handle of the deployment of cores; no requests go through it."""

        async def __init__(  # type: ignore[misc]  # Ray Serve awaits it.
            self, engine: EngineConfig, server: ServerConfig, cores: Any
        ) -> None:
            del cores
            self._api = ApiReplica(engine, server)
            await self._api.start()

        def __serve_build_asgi_app__(self) -> Any:
            return self._api.app

        def check_health(self) -> None:
            self._api.check()

        async def __del__(self) -> None:
            await self._api.stop()

    return Api
