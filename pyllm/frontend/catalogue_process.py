"""The API process of a catalogue: one HTTP server, and the clients of loaded models. Knows no other process.

Heavy imports are inside the functions, as in `frontend/api_process.py`, whose settings of the interpreter it shares.
"""

import asyncio
import gc
import os
import socket
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

import msgspec

from pyllm.config.process_config import CatalogueApiConfig, CatalogueNews
from pyllm.frontend.api_process import run_api, tune_interpreter
from pyllm.supervision.parent_link import ParentLink
from pyllm.supervision.process_samples import ProcessSampler, load_nvml
from pyllm.wire.heartbeat import HEARTBEAT_INTERVAL
from pyllm.wire.supervision_messages import Kept

if TYPE_CHECKING:
    from pyllm.frontend.catalogue.catalogue import Catalogue


def main(config: CatalogueApiConfig, connection: Connection, listener: socket.socket) -> int:
    """Serve until SIGTERM or SIGINT, let running requests finish, and give the exit code; as `api_process.main`."""
    return run_api("pyllm::api-0", config.log, connection, lambda parent: _serve(config, listener, parent))


async def _serve(config: CatalogueApiConfig, listener: socket.socket, parent: ParentLink) -> int:
    parent.enter("importing the frontend")
    gc.disable()
    from pyllm.frontend.catalogue.catalogue import Catalogue
    from pyllm.frontend.catalogue_server import ServerParts, create_catalogue_app, open_service
    from pyllm.frontend.http_server import HttpServer
    from pyllm.frontend.requests.server_credentials import ServerCredentials

    parts = ServerParts(
        credentials=ServerCredentials(config.server, config.credentials),
        sampler=ProcessSampler(lambda: [os.getppid()], nvml=load_nvml(), restarts=lambda: parent.restarts),
        parent_silence=lambda: parent.parent_silence,
        ask_reload=parent.ask_reload,
    )
    catalogue = Catalogue(
        config,
        parts.credentials,
        want=lambda choices: parent.keep(Kept(catalogue=choices)),
        open_service=lambda api, shared: open_service(api, shared, parts),
        parent_silence=parts.parent_silence,
    )
    app = create_catalogue_app(catalogue, parts)
    loop = asyncio.get_running_loop()

    def follow() -> None:
        catalogue.follow(msgspec.msgpack.decode(parent.news, type=CatalogueNews))

    def follow_soon() -> None:
        loop.call_soon_threadsafe(follow)

    parent.on_news = follow_soon
    if parent.news:
        follow()
    parent.enter("opening the server")
    server = HttpServer(app, catalogue, config.server.shutdown_timeout, parent.started)
    tune_interpreter()
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    tending = asyncio.ensure_future(_tend(parent, catalogue))
    try:
        await asyncio.wait({serving, tending}, return_when=asyncio.FIRST_COMPLETED)
        if tending.done():
            tending.result()  # An error: the parent must get it before it misses heartbeats.
        await serving
    finally:
        tending.cancel()
        catalogue.close()
    return 0


async def _tend(parent: ParentLink, catalogue: "Catalogue") -> None:
    """Twice a second: heartbeats to the parent, each model's regular work, memory given back if it is short."""
    from pyllm.supervision.memory_pressure import MemoryPressure

    def resize(share: float) -> None:
        for service in catalogue.services:
            service.state.prompts.resize_cache(share)
            service.state.shared.resize(share)

    pressure = MemoryPressure([resize])
    while True:
        parent.pulse()
        await asyncio.sleep(HEARTBEAT_INTERVAL)
        catalogue.beat()
        released = pressure.look()
        for service in catalogue.services:
            service.state.metrics.degradations["host_memory"] += released
