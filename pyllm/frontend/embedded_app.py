"""The application inside another program's process, such as a replica of Ray Serve: its state and background tasks.

Opens no port and has no supervisor; `frontend/api_process.py` is the process of pyllm's own server.
"""

import asyncio
from typing import Any, Self

from pyllm.config.process_config import ApiConfig
from pyllm.frontend.app import create_app
from pyllm.frontend.http.asgi import ASGIApp, Receive, Scope, Send
from pyllm.frontend.requests.server_cores import ServerCores
from pyllm.frontend.requests.server_state import ServerState
from pyllm.frontend.shared.local_state import LocalState
from pyllm.frontend.shared.shared_state import SharedState
from pyllm.frontend.text.templates import ChatTemplate
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.supervision.memory_pressure import MemoryPressure
from pyllm.wire.heartbeat import HEARTBEAT_INTERVAL


class EmbeddedApp:
    """The ASGI application `app` with its state, created by `start`. It also answers a server's lifespan events.

    Its requests go to `cores`. Run `tend` beside it. Limits and records are this application's own.
    """

    def __init__(self, state: ServerState, shared: LocalState) -> None:
        self._state = state
        self._shared = shared
        self.cores = state.cores
        self.app = _with_lifespan(create_app(state))

    @classmethod
    async def start(cls, config: ApiConfig) -> Self:
        """Connect to the first cores, which `config.shared` lists.

        Raises:
            ConfigError: a core's keys cannot be read, or the recording cannot be made.
            EngineDeadError: none of them answered within the server's `ready_timeout`.
        """
        files = config.checkpoint.tokenizer
        shared = LocalState(SharedState(config.shared))
        cores = await ServerCores.connect(config, shared)
        return cls(ServerState.of(config, cores, shared, Tokenizer(files), ChatTemplate.of(files)), shared)

    @property
    def alive(self) -> bool:
        """Whether it can serve: cores may be away, but come back."""
        return self._state.client.alive

    @property
    def fingerprint(self) -> str:
        """The cores' fingerprint; see `Ready`."""
        return self._state.client.base_fingerprint

    async def tend(self) -> None:
        """Follow the list of cores, keep the metrics' history, release memory under pressure, and report counts."""
        following = asyncio.gather(self.cores.follow(), self._state.history.follow())
        try:
            await self._tend(following)
        finally:
            following.cancel()

    def close(self) -> None:
        """Disconnect, and send the last traces."""
        self._shared.close()
        self._state.client.close()
        if self._state.tracer is not None:
            self._state.tracer.close()

    async def _tend(self, following: "asyncio.Future[Any]") -> None:
        """Twice a second, send a heartbeat to the shared state, and release memory where it is short."""
        state = self._state
        pressure = MemoryPressure([state.prompts.resize_cache, self._shared.resize])
        while not following.done():
            await asyncio.wait({following}, timeout=HEARTBEAT_INTERVAL)
            state.metrics.degradations["host_memory"] += pressure.look()
            self._shared.beat(state.metrics.counted())
        following.result()


def _with_lifespan(app: ASGIApp) -> ASGIApp:
    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await app(scope, receive, send)
            return
        await _live(receive, send)

    return serve


async def _live(receive: Any, send: Any) -> None:
    """Confirm lifespan events at once: there is nothing to start or end."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
