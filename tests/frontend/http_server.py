"""A whole frontend over a scripted core: in process through ASGI, or behind a real uvicorn on a free port."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import httpx
import uvicorn

from pyllm.frontend.app import create_app
from pyllm.frontend.chat_template import ChatTemplate
from pyllm.frontend.client import EngineClient
from pyllm.frontend.server_state import ServerState
from pyllm.frontend.tokenizer import Tokenizer
from tests.frontend.fake_core import ScriptedCore, connected

TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message.role }}: {{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>{% endif %}"
)


class Frontend:
    """The parts that a test looks at, and an HTTP client for it."""

    def __init__(self, core: ScriptedCore, client: EngineClient, state: ServerState, http: httpx.AsyncClient) -> None:
        self.core = core
        self.client = client
        self.state = state
        self.http = http


def state_of(client: EngineClient, tokenizer: Tokenizer, template: str | None = TEMPLATE) -> ServerState:
    chat_template = ChatTemplate(template, "<|start|>", "<|end|>") if template else None
    return ServerState(client, tokenizer, chat_template, "tiny")


def answering(tokenizer: Tokenizer, text: str) -> ScriptedCore:
    """A core that answers every prompt with this text and then ends the sequence."""
    tokens = [*tokenizer.encode(text, add_special_tokens=False), 0]
    return ScriptedCore(lambda prompt, sample: tokens)


@asynccontextmanager
async def in_process(
    core: ScriptedCore, tokenizer: Tokenizer, template: str | None = TEMPLATE
) -> AsyncGenerator[Frontend, None]:
    client = await connected(core)
    state = state_of(client, tokenizer, template)
    transport = httpx.ASGITransport(create_app(state))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        yield Frontend(core, client, state, http)
    client.close()


@asynccontextmanager
async def behind_uvicorn(core: ScriptedCore, tokenizer: Tokenizer) -> AsyncGenerator[Frontend, None]:
    client = await connected(core)
    state = state_of(client, tokenizer)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = _Server(create_app(state))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        await server.is_up.wait()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}") as http:
            yield Frontend(core, client, state, http)
        server.should_exit = True
        await serving
    client.close()


async def until(condition: Callable[[], bool]) -> None:
    """Let the event loop run until something holds; the test's own timeout ends it if it never does."""
    while not condition():
        await asyncio.sleep(0)


class _Server(uvicorn.Server):
    def __init__(self, app: object) -> None:
        super().__init__(uvicorn.Config(app, http="httptools", lifespan="off", access_log=False, log_config=None))
        self.is_up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_up.set()
