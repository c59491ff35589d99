"""A whole frontend over a scripted core: in process through ASGI, or behind a real uvicorn on a free port."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec

from pyllm.client.client import EngineClient
from pyllm.config.api_keys import KeyRing
from pyllm.config.credentials import read_credentials
from pyllm.config.server_settings import ServerConfig
from pyllm.frontend.app import create_app
from pyllm.frontend.http_server import HttpServer
from pyllm.frontend.requests.server_credentials import ServerCredentials
from pyllm.frontend.requests.server_state import DEFAULT_SERVER, ServerState
from pyllm.frontend.text.templates import ChatTemplate
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.wire.messages import ModelInfo
from tests.client.fake_core import MODEL, ScriptedCore, connected
from tests.frontend.tiny_checkpoint import tiny_checkpoint

TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message.role }}: {{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>{% endif %}"
)

# Fields of a chat's message that no model here fills: null, as in vLLM.
UNFILLED = {"refusal": None, "annotations": None, "audio": None, "function_call": None}
STRICT = ServerConfig(unknown_fields="refuse")


@dataclass
class Frontend:
    """The parts that a test looks at, and an HTTP client for it. In process there is neither address nor server."""

    core: ScriptedCore
    client: EngineClient
    state: ServerState
    http: httpx.AsyncClient
    address: tuple[str, int] = ("", 0)
    server: HttpServer | None = None


def state_of(
    client: EngineClient,
    tokenizer: Tokenizer,
    template: str | None = TEMPLATE,
    *,
    keys: KeyRing | None = None,
    server: ServerConfig = DEFAULT_SERVER,
    **options: Any,
) -> ServerState:
    """`keys` are of flags; what the files hold that the settings name comes to them."""
    chat_template = ChatTemplate(template, "<|start|>", "<|end|>") if template else None
    credentials = ServerCredentials(server, read_credentials(server, keys.entries if keys else ()))
    options = {"checkpoint": tiny_checkpoint()} | options
    return ServerState(client, tokenizer, chat_template, "tiny", server=server, credentials=credentials, **options)


def answering(tokenizer: Tokenizer, text: str, model: ModelInfo = MODEL) -> ScriptedCore:
    """A core that answers every prompt with this text and then ends the sequence."""
    tokens = [*tokenizer.encode(text, add_special_tokens=False), 0]
    return ScriptedCore(lambda prompt, sample: tokens, model)


@asynccontextmanager
async def in_process(
    core: ScriptedCore, tokenizer: Tokenizer, template: str | None = TEMPLATE, **options: Any
) -> AsyncGenerator[Frontend, None]:
    """`options` are those of `state_of`, here and below."""
    client = await connected(core)
    state = state_of(client, tokenizer, template, **options)
    transport = httpx.ASGITransport(create_app(state))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        yield Frontend(core, client, state, http)
    client.close()


@asynccontextmanager
async def behind_uvicorn(
    core: ScriptedCore, tokenizer: Tokenizer, grace: float = 0.0, send_buffer: int = 0, **options: Any
) -> AsyncGenerator[Frontend, None]:
    client = await connected(core)
    state = state_of(client, tokenizer, **options)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        if send_buffer:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        started = asyncio.Event()
        server = HttpServer(create_app(state), state, grace, started.set)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        await started.wait()
        address = listener.getsockname()
        async with httpx.AsyncClient(base_url=f"http://{address[0]}:{address[1]}") as http:
            yield Frontend(core, client, state, http, address, server)
        server.stop()
        await serving
    client.close()


def events(text: str) -> list[dict[str, Any]]:
    """The JSON of a stream's events; checks their form, and that the stream ends as it must."""
    *parts, end = text.split("\n\n")
    assert end == ""
    assert parts.pop() == "data: [DONE]"
    assert all(part.startswith("data: ") and "\n" not in part for part in parts)
    return [msgspec.json.decode(part.removeprefix("data: ")) for part in parts]
