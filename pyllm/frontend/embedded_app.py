"""The application in a process of somebody else's, such as a replica of Ray Serve: its state, and what goes on beside.

Opens no port and has no supervisor; `frontend/api_process.py` is the process of a server of our own.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from litestar.types import ASGIApp, Receive, Scope, Send

from pyllm.checkpoint.types import Checkpoint
from pyllm.client.client import EngineClient
from pyllm.config.api_keys import ApiKey, KeyRing
from pyllm.config.process_config import SharedConfig
from pyllm.config.server_settings import ServerConfig
from pyllm.frontend.app import create_app
from pyllm.frontend.observability.tracing import Tracer
from pyllm.frontend.requests.server_state import ServerState
from pyllm.frontend.shared.local_state import LocalState
from pyllm.frontend.shared.shared_state import SharedState
from pyllm.frontend.text.templates import ChatTemplate
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.supervision.memory_pressure import MemoryPressure
from pyllm.wire.heartbeat import HEARTBEAT_INTERVAL


class EmbeddedApp:
    """`app` is the ASGI application, which also answers a server's lifespan events. Run `tend` beside it.

    Limits and records are this application's own: `shared` says what they are.
    """

    def __init__(
        self,
        client: EngineClient,
        checkpoint: Checkpoint,
        names: Sequence[str],
        *,
        server: ServerConfig,
        api_keys: tuple[ApiKey, ...],
        shared: SharedConfig,
    ) -> None:
        model_name, *aliases = names
        endpoint = server.otlp_traces_endpoint
        self._tracer = Tracer.to_collector(endpoint, model_name) if endpoint else None
        self._shared = LocalState(SharedState(shared))
        self._state = ServerState(
            client,
            Tokenizer(checkpoint.tokenizer),
            ChatTemplate.of(checkpoint.tokenizer),
            model_name,
            model_aliases=aliases,
            server=server,
            sampling=checkpoint.sampling,
            keys=KeyRing(api_keys),
            shared=self._shared,
            tracer=self._tracer,
        )
        self.app = _with_lifespan(create_app(self._state))

    async def tend(self) -> None:
        """Twice a second: tell the shared state that this process lives, and give memory back where it is short."""
        state = self._state
        pressure = MemoryPressure([state.prompts.resize_cache, self._shared.resize])
        while True:
            await asyncio.sleep(HEARTBEAT_INTERVAL)
            state.metrics.degradations["host_memory"] += pressure.look()
            self._shared.beat(state.metrics.counted())

    def close(self) -> None:
        """Send the last traces."""
        self._shared.close()
        if self._tracer is not None:
            self._tracer.close()


def _with_lifespan(app: ASGIApp) -> ASGIApp:
    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":  # type: ignore[comparison-overlap]  # A server's first scope is one.
            await app(scope, receive, send)
            return
        await _live(receive, send)

    return serve


async def _live(receive: Any, send: Any) -> None:
    """Say that there is nothing to start, and nothing to end."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
