"""Answers of an OpenAI-compatible server by HTTP. A broken stream is resumed if its events have ids.

Knows no terminal, and of pyllm's own server only `Last-Event-ID` and `/model_info` (docs/http-api.md).
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from typing import Any

import httpx2
import msgspec

from pyllm.errors import ConfigError, PyllmError, RequestError
from pyllm.terminal_chat.answers import AnswerPiece, Fields, Message
from pyllm.wire.server_address import error_message, server_address
from pyllm.wire.server_client import (
    CONNECT_TIMEOUT,
    Delta,
    check_status,
    decode_chunk,
    describe_model,
    list_models,
    open_client,
    unreachable,
)
from pyllm.wire.server_trust import DEFAULT_TRUST, ServerTrust

# Seconds before each attempt to resume a stream; every event resets the attempts.
PAUSES = (0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0)
# A server may compute a long prompt without sending a byte.
TIMEOUT = httpx2.Timeout(CONNECT_TIMEOUT, read=600.0)

_SHOWN_CHARACTERS = 300  # of an event that cannot be read


class ServerSource:
    """A server at an address such as `http://127.0.0.1:8000`; `/v1` may be left out.

    An empty `model` means the server's first one. `pause` sleeps for a number of seconds.

    Raises:
        ConfigError: the address is invalid, or CA certificates cannot be read.
    """

    chat_template: str | None = None  # Servers do not report it.

    def __init__(
        self,
        address: str,
        api_key: str = "",
        model: str = "",
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        *,
        trust: ServerTrust = DEFAULT_TRUST,
    ) -> None:
        self.model = model
        self._address = server_address(address)
        self._client = open_client(self._address, api_key, trust, TIMEOUT)
        self._pause = pause

    @property
    def description(self) -> str:
        """The model and the server's address."""
        return f"{self.model} at {self._address}"

    async def start(self, for_chat: bool) -> None:
        """Choose the server's first model, unless a model was named.

        Raises:
            PyllmError: the server cannot be reached, requires a key, has no models, or is pyllm's and cannot chat.
        """
        if not self.model:
            models = await self.models()
            if not models:
                raise PyllmError(f"{self._address} has no models")
            self.model = models[0]
        if for_chat and not (await describe_model(self._client, self.model)).has_chat_template:
            from pyllm.frontend.text.templates import no_chat_template

            raise PyllmError(no_chat_template(f"the model at {self._address}"))

    async def models(self) -> list[str]:
        """The names that the server lists."""
        return await list_models(self._client)

    async def select(self, name: str) -> None:
        """Use another of the server's models from now on."""
        models = await self.models()
        if name not in models:
            raise ConfigError(f"{self._address} has no model {name!r}, but {', '.join(models) or 'none'}")
        self.model = name

    async def answer(self, prompt: str | Sequence[Message], fields: Fields) -> AsyncGenerator[AnswerPiece, None]:
        """Stream the answer of `POST /v1/chat/completions`, or of `/v1/completions` for a text."""
        is_text = isinstance(prompt, str)
        body: dict[str, Any] = {"prompt": prompt} if is_text else {"messages": list(prompt)}
        body |= {"model": self.model, "stream": True, "stream_options": {"include_usage": True}, **fields}
        url = "/v1/completions" if is_text else "/v1/chat/completions"
        async with contextlib.aclosing(self._events(url, body)) as events:
            async for data in events:
                for piece in _read_chunk(data):
                    yield piece

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _events(self, url: str, body: dict[str, Any]) -> AsyncGenerator[str, None]:
        """The data of each event up to `[DONE]`, over several connections if the stream breaks."""
        last_event_id = ""
        pauses = iter(PAUSES)
        while True:
            headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last_event_id} if last_event_id else {})
            try:
                async with self._client.stream("POST", url, json=body, headers=headers) as response:
                    await check_status(response)
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
                    raise unreachable(self._address, error) from None
            except PyllmError as error:
                if not last_event_id or isinstance(error, RequestError):
                    raise
                reason = str(error)
            if not last_event_id:
                raise PyllmError(f"the stream broke off: {reason}")
            seconds = next(pauses, None)
            if seconds is None:
                raise PyllmError(f"the stream broke off, and {len(PAUSES)} tries to go on failed: {reason}")
            await self._pause(seconds)


def _read_chunk(data: str) -> Iterator[AnswerPiece]:
    try:
        chunk = decode_chunk(data)
    except msgspec.DecodeError as error:
        text = f"the server sent an event that is no chunk of an answer ({error}): {data[:_SHOWN_CHARACTERS]}"
        raise PyllmError(text) from None
    if chunk.error is not None:
        raise PyllmError(error_message(chunk.error))
    for choice in chunk.choices or ():
        delta = choice.delta or Delta(content=choice.text)
        reasoning = delta.reasoning or delta.reasoning_content or ""
        yield AnswerPiece(delta.content or "", reasoning, choice.index, choice.finish_reason)
    if chunk.usage is not None:
        yield AnswerPiece(usage=chunk.usage)
