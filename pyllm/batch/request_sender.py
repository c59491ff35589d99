"""One request of a batch over HTTP, until it has an answer: transient failures are retried, any other is the answer.

Knows neither of the files. Raises only where all other requests would fail in the same way.
"""

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from pyllm.batch.answer_file import Answer, Response
from pyllm.errors import ConfigError

BUSY = frozenset({429, 502, 503, 504})  # of a server, or of a proxy before it, that is busy or starting
BUSY_PATIENCE = 600.0  # total seconds that one request waits for a busy server
UNREACHABLE_PATIENCE = 60.0  # total seconds of waiting for a server that accepts no connection
MAX_LOSSES = 3  # connections that may be lost while they carry this request

_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0
_SHOWN = 300  # characters of an answer in an error


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


class _Body(msgspec.Struct):
    usage: _Usage | None = None


class RequestSender:
    """Sends requests over an `httpx2.AsyncClient`, whose base URL is the server's. `sleep` takes seconds.

    `num_prompt_tokens` and `num_output_tokens` are those of all answers so far, where they give them.
    """

    def __init__(self, http: Any, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self.num_prompt_tokens = self.num_output_tokens = 0
        self._http = http
        self._sleep = sleep

    async def send(self, custom_id: str, url: str, body: bytes) -> Answer:
        """Send a request; returns its answer, which may be an error response.

        Raises:
            ConfigError: the server refuses the API key.
            UnreachableError: the server accepts no connection for a minute.
        """
        import httpx2

        from pyllm.wire.server_client import KEY_ADVICE, REFUSED_KEY, unreachable

        losses, waits = 0, _Waits(self._sleep)
        while True:
            try:
                response = await self._http.post(url, content=body, headers={"Content-Type": "application/json"})
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                if waits.total >= UNREACHABLE_PATIENCE:
                    raise unreachable(self._http.base_url, error) from None
                await waits.next()
            except httpx2.TransportError as error:
                losses += 1
                if losses == MAX_LOSSES:
                    text = f"the connection was lost {losses} times: {error or type(error).__name__}"
                    return _failure(custom_id, "connection_lost", text)
                await waits.next()
            else:
                if response.status_code in REFUSED_KEY:
                    text = f"the server refuses the key with {response.status_code}: {response.text[:_SHOWN]}"
                    raise ConfigError(f"{text}; {KEY_ADVICE}")
                if response.status_code not in BUSY or waits.total >= BUSY_PATIENCE:
                    return self._answer(custom_id, response)
                await waits.next(_seconds(response.headers.get("retry-after")))

    def _answer(self, custom_id: str, response: Any) -> Answer:
        try:
            body = msgspec.json.format(response.content, indent=-1)  # Without line ends: an answer is one line.
            usage = msgspec.json.decode(body, type=_Body).usage or _Usage()
            self.num_prompt_tokens += usage.prompt_tokens or usage.input_tokens or 0
            self.num_output_tokens += usage.completion_tokens or usage.output_tokens or 0
        except msgspec.ValidationError:
            pass  # Its usage has an unknown form.
        except (msgspec.DecodeError, UnicodeDecodeError):
            text = f"status {response.status_code} with a body that is no JSON: {response.text[:_SHOWN]!r}"
            return _failure(custom_id, "invalid_response", text)
        request_id = response.headers.get("x-request-id", "")
        answered = Response(response.status_code, request_id, msgspec.Raw(body))
        return Answer(id=_id(), custom_id=custom_id, response=answered)


class _Waits:
    """Exponential backoff with jitter, for one request."""

    def __init__(self, sleep: Callable[[float], Awaitable[None]]) -> None:
        self.total = 0.0
        self._sleep = sleep
        self._next = _FIRST_WAIT

    async def next(self, at_least: float = 0.0) -> None:
        seconds = max(at_least, self._next * random.uniform(0.5, 1.0))  # noqa: S311  nothing secret depends on it
        self._next = min(2 * self._next, _LONGEST_WAIT)
        self.total += seconds
        await self._sleep(seconds)


def _failure(custom_id: str, code: str, message: str) -> Answer:
    return Answer(id=_id(), custom_id=custom_id, response=None, error={"code": code, "message": message})


def _id() -> str:
    return f"batch_req_{uuid.uuid4().hex}"


def _seconds(text: str | None) -> float:
    """Seconds of a `Retry-After` header; 0 where it is a date or missing."""
    return min(float(text), BUSY_PATIENCE) if text is not None and text.isdecimal() else 0.0
