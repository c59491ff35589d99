"""A replica of the API's deployment: the routes of `pyllm serve`, for the cores that the application has just now.

Follows the registry; knows neither how cores are started nor how Ray Serve places them.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from pyllm.client.client import EngineClient
from pyllm.client.core_connection import over_zeromq
from pyllm.config.engine_settings import EngineConfig
from pyllm.config.server_settings import ServerConfig
from pyllm.errors import PyllmError, StartError
from pyllm.frontend import embedded_app
from pyllm.launch.resolve import resolve_server, resolve_settings, shared_config
from pyllm.ray.core_registry import CoreEntry, CoreRegistry, LiveCores
from pyllm.ray.core_replica import settings_hash

LOOK = 0.5  # seconds between two looks at the registry
LEAVE_TIMEOUT = 1.0  # seconds in which what runs on a core that leaves may end there, before it goes on elsewhere

logger = logging.getLogger(__name__)


class ApiReplica:
    """Starts with the replica, and ends with it; Ray Serve calls its methods."""

    def __init__(self, engine: EngineConfig, server: ServerConfig) -> None:
        self._engine = engine
        self._server = server
        self._live = LiveCores()
        self._indices: dict[str, int] = {}  # of the client's cores, by their addresses
        self._changing: dict[str, asyncio.Task[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Wait for a core, and make the application.

        Raises:
            PyllmError: no core came in time, or a setting is wrong.
        """
        from ray import serve

        self._registry = CoreRegistry(serve.get_replica_context().app_name)
        server, api_keys = resolve_server(self._server)
        parallel = msgspec.structs.replace(self._engine.parallel, distributed_executor_backend="ray")
        # Here are neither the model's ranks nor their devices.
        engine = msgspec.structs.replace(self._engine, parallel=parallel)
        engine, checkpoint = await asyncio.to_thread(resolve_settings, engine)
        self._keys = (await self._registry.keys()).client
        first = await self._first()
        self._client = EngineClient(
            *(over_zeromq(address, self._keys) for address in first),
            placement="prefix",
            addresses=first,
            transport=lambda address: over_zeromq(address, self._keys),
            awaits_first=True,
        )
        await self._client.start(server.ready_timeout)
        self._indices = {core.address: core.index for core in self._client.cores}
        self._embedded = embedded_app.EmbeddedApp(
            self._client,
            checkpoint,
            engine.model.served_model_name,
            server=server,
            api_keys=api_keys,
            shared=shared_config(server, engine.scheduler.max_num_seqs),
        )
        self._tasks = [asyncio.ensure_future(self._follow()), asyncio.ensure_future(self._embedded.tend())]

    @property
    def app(self) -> Any:
        """The ASGI application."""
        return self._embedded.app

    def check(self) -> None:
        """Raises why this replica cannot serve any more, if it cannot."""
        if not self._client.alive:
            raise StartError("the client of the cores has ended; another replica takes this one's place")
        for task in self._tasks:
            if task.done():
                task.result()

    async def stop(self) -> None:
        """End what follows the cores; Ray Serve has waited for the requests."""
        for task in (*self._tasks, *self._changing.values()):
            task.cancel()
        self._embedded.close()
        self._client.close()

    async def _first(self) -> list[str]:
        """The addresses of the cores with this replica's settings, as soon as there is one."""
        settings = settings_hash(self._engine)
        try:
            async with asyncio.timeout(self._server.ready_timeout):
                while True:
                    entries = self._live.live(await self._registry.entries(), time.monotonic())
                    found = [entry.address for entry in entries.values() if entry.settings == settings]
                    if found:
                        return found
                    await asyncio.sleep(LOOK)
        except TimeoutError:
            text = f"no core of the application was ready within {self._server.ready_timeout:g} s"
            raise StartError(f"{text}; see the log of the deployment Cores") from None

    async def _follow(self) -> None:
        """Take in cores that come, and leave those that go, of the same model."""
        while True:
            await asyncio.sleep(LOOK)
            try:
                entries = self._live.live(await self._registry.entries(), time.monotonic())
            except Exception as error:  # noqa: BLE001 - Ray's, of whatever kind, while its head is away
                logger.warning("the registry of cores does not answer: %s", error)
                continue
            self._change(entries)

    def _change(self, entries: Mapping[str, CoreEntry]) -> None:
        wanted = {entry.address for entry in entries.values() if entry.fingerprint == self._client.fingerprint}
        for address in wanted - self._indices.keys():
            self._begin(address, self._add(address))
        for address in self._indices.keys() - wanted:
            self._begin(address, self._remove(address))

    def _begin(self, address: str, change: Any) -> None:
        if address in self._changing:
            change.close()
            return
        task = self._changing[address] = asyncio.ensure_future(change)
        task.add_done_callback(lambda _: self._changing.pop(address))

    async def _add(self, address: str) -> None:
        try:
            self._indices[address] = await self._client.add_core(address)
            logger.info("core %d at %s takes requests", self._indices[address], address)
        except PyllmError as error:
            logger.warning("a core is not used: %s", error)

    async def _remove(self, address: str) -> None:
        index = self._indices[address]
        if len(self._client.cores) == 1:
            return  # Until another one comes: the streams wait for that.
        try:
            await self._client.remove_core(index, LEAVE_TIMEOUT)
        except PyllmError as error:
            logger.warning("a core that has left is kept: %s", error)
            return
        del self._indices[address]
        logger.info("core %d at %s has left", index, address)


def deployment_class() -> Any:
    """The class that Ray Serve makes replicas of, behind its HTTP proxies."""
    from ray import serve

    @serve.ingress()
    class Api:
        """The API of pyllm. `cores` is the handle of the deployment that it needs; requests do not go there."""

        async def __init__(self, engine: EngineConfig, server: ServerConfig, cores: Any) -> None:
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
