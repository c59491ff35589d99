"""HTTP of commands to an OpenAI-compatible server: a client, the list of its models, the chunks of its streams.

Commands import this module when they run, since `httpx2` is slow to load.
"""

from typing import Any
from urllib.parse import urlsplit

import httpx2
import msgspec

from pyllm.errors import ConfigError, PyllmError, RequestError
from pyllm.wire.server_address import error_text
from pyllm.wire.server_trust import DEFAULT_TRUST, ServerTrust, connection_advice

KEY_ADVICE = "give the server's key by --api-key or OPENAI_API_KEY"
CONNECT_TIMEOUT = 10.0  # seconds
SHORT_TIMEOUT = httpx2.Timeout(60.0, connect=CONNECT_TIMEOUT)  # of requests that compute nothing
REFUSED_KEY = frozenset({httpx2.codes.UNAUTHORIZED, httpx2.codes.FORBIDDEN})

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class UnreachableError(PyllmError):
    """No server accepts connections at the address."""


class Delta(msgspec.Struct):
    """The new part of a chat's answer."""

    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None  # the older name
    tool_calls: list[Any] | None = None


class Choice(msgspec.Struct):
    """One answer's part of a chunk: `delta` of a chat, `text` of a completion."""

    index: int = 0
    delta: Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class PromptDetails(msgspec.Struct):
    """The part of a prompt that was in the server's prefix cache."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """Token counts of a request."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: PromptDetails | None = None


class Chunk(msgspec.Struct):
    """One event of a stream."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: Any = None


class ModelDescription(msgspec.Struct):
    """A pyllm server's words on its model's chat template; the defaults are those of other servers."""

    has_chat_template: bool = True
    chat_template_notice: str = ""


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


decode_chunk = msgspec.json.Decoder(Chunk).decode


def open_client(
    address: str,
    key: str = "",
    trust: ServerTrust = DEFAULT_TRUST,
    timeout: float | httpx2.Timeout | None = None,
    *,
    max_connections: int = 100,
    socket: str = "",
    transport: httpx2.AsyncBaseTransport | None = None,
) -> httpx2.AsyncClient:
    """A client of the server at an address without `/v1`. It asks no proxy of the environment for this machine.

    `socket` is the path of a Unix socket on which the server listens; `transport` replaces the network, for tests.

    Raises:
        ConfigError: the address is invalid, or CA certificates cannot be read.
    """
    limits = httpx2.Limits(max_connections=max_connections, max_keepalive_connections=max_connections)
    if socket:
        transport = httpx2.AsyncHTTPTransport(uds=socket, limits=limits)
    try:
        return httpx2.AsyncClient(
            base_url=address,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            limits=limits,
            timeout=timeout,
            transport=transport,
            trust_env=urlsplit(address).hostname not in _LOOPBACK,
            verify=trust.verify(),
        )
    except httpx2.InvalidURL as error:
        raise ConfigError(f"{address} is no address of a server: {error}") from None


async def list_models(client: httpx2.AsyncClient) -> list[str]:
    """The names of the server's models.

    Raises:
        UnreachableError: no server accepts a connection.
        RequestError: the server refuses the request, or its key.
        PyllmError: the server failed, or lists no models.
    """
    try:
        response = await client.get("/v1/models", timeout=SHORT_TIMEOUT)
        await check_status(response)
        return model_names(response.content)
    except httpx2.TransportError as error:
        raise unreachable(client.base_url, error) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise PyllmError(f"{response.url} lists no models: it is no OpenAI-compatible server") from None


def model_names(body: bytes) -> list[str]:
    """The names in an answer of `/v1/models`.

    Raises:
        msgspec.DecodeError, UnicodeDecodeError: it lists no models.
    """
    return [model.id for model in msgspec.json.decode(body, type=_Models).data]


async def describe_model(client: httpx2.AsyncClient, model: str = "") -> ModelDescription:
    """The description of the server's model, or of this one of several.

    A problem of the server is left to the next request.
    """
    try:
        response = await client.get("/model_info", params={"model": model} if model else None, timeout=SHORT_TIMEOUT)
        return msgspec.json.decode(response.content, type=ModelDescription)
    except (httpx2.TransportError, msgspec.DecodeError, UnicodeDecodeError):
        return ModelDescription()


async def check_status(response: httpx2.Response) -> None:
    """Raise the error of an answer that is none: `RequestError` for a status of 4xx, else `PyllmError`."""
    status = response.status_code
    if status == httpx2.codes.OK:
        return
    text = f"{response.url} answered {status}: {error_text(await response.aread())}"
    if status in REFUSED_KEY:
        text += f" ({KEY_ADVICE})"
    raise (PyllmError if status >= httpx2.codes.INTERNAL_SERVER_ERROR else RequestError)(text)


def unreachable(address: str | httpx2.URL, error: Exception | str) -> UnreachableError:
    """The error of a connection that failed."""
    failure = str(error) or type(error).__name__
    advice = connection_advice(failure) or "is the server running, and is the address right?"
    return UnreachableError(f"cannot reach {str(address).rstrip('/')}: {failure}; {advice}")
