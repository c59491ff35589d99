"""Answers of an OpenAI-compatible server by HTTP. A broken stream is resumed if its events have ids.

Knows no terminal, and of pyllm's own server only `Last-Event-ID` and `/model_info` (docs/http-api.md).
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import httpx2
import msgspec

from pyllm.errors import ConfigError, PyllmError, RequestError
from pyllm.terminal_chat.answer_source import AnswerParameters, AnswerPiece, Message, TokenUsage
from pyllm.wire.server_address import error_message, error_text, model_names, server_address
from pyllm.wire.server_trust import DEFAULT_TRUST, ServerTrust, connection_advice

# Seconds before each attempt to resume a stream; every event resets the attempts.
PAUSES = (0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0)
# A server may compute a long prompt without sending a byte.
TIMEOUT = httpx2.Timeout(10.0, read=600.0)

_SHOWN_CHARACTERS = 300  # of an error response that is not in OpenAI's form
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None  # the older name


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Delta | None = None  # of a chat
    text: str | None = None  # of a completion
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


class _ModelDescription(msgspec.Struct):
    has_chat_template: bool = True


class _UnavailableError(PyllmError):
    """The server answered with a status of 5xx."""


class ServerSource:
    """A server at an address such as `http://127.0.0.1:8000`; `/v1` may be left out.

    An empty `model` means the server's first one. `pause` sleeps for a number of seconds.

    Raises:
        ConfigError: the address is invalid, or CA certificates cannot be read.
    """

    def __init__(
        self,
        address: str,
        api_key: str = "",
        model: str = "",
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        *,
        trust: ServerTrust = DEFAULT_TRUST,
    ) -> None:
        self._base = f"{server_address(address)}/v1"
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        url = urlsplit(self._base)
        self._client = httpx2.AsyncClient(
            headers=headers,
            timeout=TIMEOUT,
            verify=trust.verify(),
            trust_env=url.hostname not in _LOOPBACK,
        )
        self._model = model
        self._pause = pause

    @property
    def model(self) -> str:
        """The name of the model in requests."""
        return self._model

    @property
    def description(self) -> str:
        """The model and the server's address."""
        return f"{self._model} at {self._base.removesuffix('/v1')}"

    @property
    def chat_template(self) -> None:
        """Servers do not report their template."""

    async def check_chat(self) -> None:
        """Refuse a model without a chat template, if it is a pyllm server's; other servers do not report it."""
        try:
            response = await self._client.get(f"{self._base.removesuffix('/v1')}/model_info")
            description = msgspec.json.decode(response.content, type=_ModelDescription)
        except (httpx2.TransportError, httpx2.InvalidURL, msgspec.DecodeError):
            return  # `start` reports the problem, if there is one.
        if not description.has_chat_template:
            from pyllm.frontend.text.templates import no_chat_template

            raise PyllmError(no_chat_template(f"the model at {self._base.removesuffix('/v1')}"))

    async def start(self) -> None:
        """Choose the server's first model, unless a model was named.

        Raises:
            PyllmError: the server cannot be reached, requires a key, or has no models.
        """
        if self._model:
            return
        models = await self.models()
        if not models:
            raise PyllmError(f"{self._base} has no models")
        self._model = models[0]

    async def models(self) -> list[str]:
        """The names that the server lists."""
        url = f"{self._base}/models"
        try:
            response = await self._client.get(url)
            await _check_status(response)
            return model_names(response.content)
        except (httpx2.TransportError, httpx2.InvalidURL) as error:
            raise PyllmError(_unreachable(self._base, error)) from None
        except msgspec.DecodeError:
            raise PyllmError(f"{url} lists no models: it is no OpenAI-compatible server") from None

    async def select(self, name: str) -> None:
        """Use another of the server's models from now on."""
        models = await self.models()
        if name not in models:
            raise ConfigError(f"{self._base} has no model {name!r}, but {', '.join(models) or 'none'}")
        self._model = name

    def chat(self, messages: Sequence[Message], parameters: AnswerParameters) -> AsyncGenerator[AnswerPiece, None]:
        """Stream the answer of `POST /v1/chat/completions`."""
        return self._pieces("chat/completions", {"messages": list(messages)}, parameters)

    def complete(self, prompt: str, parameters: AnswerParameters) -> AsyncGenerator[AnswerPiece, None]:
        """Stream the answer of `POST /v1/completions`."""
        return self._pieces("completions", {"prompt": prompt}, parameters)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _pieces(
        self, route: str, body: dict[str, Any], parameters: AnswerParameters
    ) -> AsyncGenerator[AnswerPiece, None]:
        body |= {"model": self._model, "stream": True, "stream_options": {"include_usage": True}}
        body |= parameters.given()
        async with contextlib.aclosing(self._events(f"{self._base}/{route}", body)) as events:
            async for data in events:
                for piece in _read_chunk(data):
                    yield piece

    async def _events(self, url: str, body: dict[str, Any]) -> AsyncGenerator[str, None]:
        """The data of each event up to `[DONE]`, over several connections if the stream breaks."""
        last_event_id = ""
        pauses = iter(PAUSES)
        while True:
            headers = {"Accept": "text/event-stream"}
            if last_event_id:
                headers["Last-Event-ID"] = last_event_id
            try:
                async with self._client.stream("POST", url, json=body, headers=headers) as response:
                    await _check_status(response)
                    async for event in httpx2.EventSource(response):
                        if event.data == "[DONE]":
                            return
                        if event.id and event.id != last_event_id:
                            last_event_id = event.id
                            pauses = iter(PAUSES)
                        if event.data:
                            yield event.data
                reason = "the server ended it early"
            except httpx2.TransportError as error:
                reason = str(error) or type(error).__name__
                if not last_event_id and isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
                    raise PyllmError(_unreachable(self._base, error)) from None
            except _UnavailableError as error:
                reason = str(error)
                if not last_event_id:
                    raise
            if not last_event_id:
                raise PyllmError(f"the stream broke off: {reason}")
            seconds = next(pauses, None)
            if seconds is None:
                raise PyllmError(f"the stream broke off, and {len(PAUSES)} tries to go on failed: {reason}")
            await self._pause(seconds)


def _read_chunk(data: str) -> list[AnswerPiece]:
    try:
        chunk = msgspec.json.decode(data, type=_Chunk)
    except msgspec.DecodeError as error:
        text = f"the server sent an event that is no chunk of an answer ({error}): {data[:_SHOWN_CHARACTERS]}"
        raise PyllmError(text) from None
    if chunk.error is not None:
        raise PyllmError(error_message(chunk.error))
    pieces = []
    for choice in chunk.choices or ():
        delta = choice.delta or _Delta(content=choice.text)
        reasoning = delta.reasoning or delta.reasoning_content or ""
        pieces.append(AnswerPiece(delta.content or "", reasoning, choice.index, choice.finish_reason))
    if (usage := chunk.usage) is not None:
        details = usage.prompt_tokens_details
        cached = 0 if details is None else details.cached_tokens or 0
        pieces.append(AnswerPiece(usage=TokenUsage(usage.prompt_tokens, usage.completion_tokens, cached)))
    return pieces


async def _check_status(response: httpx2.Response) -> None:
    status = response.status_code
    if status == httpx2.codes.OK:
        return
    text = f"{response.url} answered {status}: {error_text(await response.aread())}"
    if status in {httpx2.codes.UNAUTHORIZED, httpx2.codes.FORBIDDEN}:
        text += " (give the server's key by --api-key or OPENAI_API_KEY)"
    if status >= httpx2.codes.INTERNAL_SERVER_ERROR:
        raise _UnavailableError(text)
    raise RequestError(text)


def _unreachable(base: str, error: Exception) -> str:
    failure = str(error) or type(error).__name__
    return f"cannot reach {base}: {failure}; {connection_advice(failure) or 'is the server running?'}"
