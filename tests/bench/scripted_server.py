"""An OpenAI-compatible server of scripted delays, which records when it had a request and when it sent each token.

Raw asyncio, so that the delays are the script's. Its clock is `time.perf_counter`, which all processes share. Its own
work must not delay its notes: it parses a request half-way to the first token, and makes what it will write before.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, SupportsIndex

JSON = "application/json"


@dataclass
class Script:
    """What the server does. Seconds; `fail` gives for a prompt the failure that it has, if any."""

    ttft: float = 0.0
    itl: float = 0.0
    key: str = ""
    models: tuple[str, ...] = ("scripted",)
    with_usage: bool = True
    fail: Callable[[str], str] | None = None
    metrics: Callable[[], str] | None = None


@dataclass
class Sent:
    """One request, as the server saw it."""

    prompt: str
    received: float
    body: Mapping[str, Any]
    tokens: list[float] = field(default_factory=list)

    @property
    def ttft(self) -> float:
        return self.tokens[0] - self.received

    @property
    def itl(self) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self.tokens)]


class StampedReader(asyncio.StreamReader):
    """Notes when a request began to come, and passes it on `delay` seconds later.

    Without the delay, of requests that come together each is noted after the work for those before it.
    """

    def __init__(self, delay: float) -> None:
        super().__init__()
        self.received = 0.0
        self._delay = delay
        self._ended = False

    def feed_data(self, data: Iterable[SupportsIndex]) -> None:
        self.received = self.received or time.perf_counter()
        if self._delay:
            asyncio.get_running_loop().call_later(self._delay, self._pass_on, data)
        else:
            self._pass_on(data)

    def feed_eof(self) -> None:
        self._ended = True
        super().feed_eof()

    def _pass_on(self, data: Iterable[SupportsIndex]) -> None:
        if not self._ended:
            super().feed_data(data)


@dataclass
class ScriptedServer:
    """A server that runs. `sent` has its requests in the order in which they came."""

    script: Script
    address: str = ""
    sent: list[Sent] = field(default_factory=list)
    connections: int = 0
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    def close_connections(self) -> None:
        """Close those that clients keep, as servers do after some idle time."""
        for writer in self.writers:
            writer.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection's requests until the client closes it."""
        assert isinstance(reader, StampedReader)
        self.connections += 1
        self.writers.append(writer)
        try:
            while await self._answer(reader, writer):
                reader.received = 0.0
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader: StampedReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        path = first.split()[1]
        if self.script.key and headers.get("authorization") != f"Bearer {self.script.key}":
            _whole(writer, "401 Unauthorized", json.dumps({"error": {"message": "this key is unknown"}}))
        elif path == "/v1/models":
            _whole(writer, "200 OK", json.dumps({"data": [{"id": name} for name in self.script.models]}))
        elif path == "/metrics":
            text = self.script.metrics() if self.script.metrics else ""
            _whole(writer, "200 OK" if text else "404 Not Found", text, "text/plain")
        elif path in ("/v1/completions", "/v1/chat/completions"):
            return await self._complete(writer, json.loads(body), "chat" in path, reader.received)
        else:
            _whole(writer, "404 Not Found", json.dumps({"error": {"message": f"no route {path}"}}))
        return True

    async def _complete(
        self, writer: asyncio.StreamWriter, body: Mapping[str, Any], chat: bool, received: float
    ) -> bool:
        prompt = body["messages"][0]["content"] if chat else body["prompt"]
        sent = Sent(prompt, received, body)
        self.sent.append(sent)
        if body["model"] not in self.script.models:
            text = f"no model {body['model']!r} here"
            _whole(writer, "404 Not Found", json.dumps({"error": {"message": text}}))
            return True
        failure = self.script.fail(prompt) if self.script.fail else ""
        if failure == "busy":
            _whole(writer, "429 Too Many Requests", json.dumps({"error": {"message": "too many requests"}}))
            return True
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        if chat:
            role = {"role": "assistant", "content": ""}
            writer.write(_event({"choices": [{"delta": role, "finish_reason": None}]}))
        due = received + self.script.ttft
        number = body["max_tokens"] - (failure == "short")
        word: dict[str, Any] = {"delta": {"content": "word "}} if chat else {"text": "word "}
        token, last_token = (_event({"choices": [{**word, "finish_reason": reason}]}) for reason in (None, "length"))
        end = _data(b"data: [DONE]\n\n") + b"0\r\n\r\n"
        if self.script.with_usage:
            usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": number}
            end = _event({"choices": [], "usage": usage}) + end
        for index in range(number):
            if (wait := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            if writer.is_closing():
                return False
            if failure == "error" and index:
                writer.write(_event({"error": {"message": "the model is lost"}}))
            elif failure == "break" and index:
                return False
            elif failure == "hang":
                await asyncio.Event().wait()
            writer.write(last_token if index == number - 1 else token)
            sent.tokens.append(time.perf_counter())
            due += self.script.itl
        writer.write(end)
        return True


def _whole(writer: asyncio.StreamWriter, status: str, text: str, kind: str = JSON) -> None:
    body = text.encode()
    writer.write(f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)


def _event(event: Mapping[str, Any]) -> bytes:
    return _data(b"data: " + json.dumps(event).encode() + b"\n\n")


def _data(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


@asynccontextmanager
async def scripted_server(script: Script | None = None, port: int = 0) -> AsyncIterator[ScriptedServer]:
    """The server, on this port of this host, 0 being any free one, and in this process's loop."""
    server = ScriptedServer(script or Script())
    listener = await asyncio.get_running_loop().create_server(
        lambda: asyncio.StreamReaderProtocol(StampedReader(server.script.ttft / 2), server.serve), "127.0.0.1", port
    )
    async with listener:
        server.address = "http://{}:{}".format(*listener.sockets[0].getsockname())
        yield server
