"""An OpenAI-compatible server whose answers are scripted: which events, and where the connection breaks."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass
class Script:
    """One answer to a POST: events with their ids, and whether they end with `[DONE]` or the connection breaks.

    `tail` is written last, as it is. With `holds` the connection stays open, silent, until the client leaves.
    """

    events: Sequence[dict[str, Any]] = ()
    ids: Sequence[str] = ()
    is_whole: bool = True
    tail: bytes = b""
    status: int = 200
    content: bytes = b""  # instead of a stream
    holds: bool = False


@dataclass
class ScriptedServer:
    """Answers POSTs by `scripts`, in their order, and lists `models`; keeps the requests."""

    scripts: list[Script] = field(default_factory=list)
    models: Sequence[str] = ("first", "second")
    key: str = ""
    has_chat_template: bool = True
    requests: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)  # path, headers, body

    async def __aenter__(self) -> Self:
        self.left = asyncio.Event()  # a client ended a request that was held
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        body = json.loads(await reader.readexactly(int(headers.get("content-length", 0))) or b"null")
        self.requests.append((path, headers, body))
        if self.key and headers.get("authorization") != f"Bearer {self.key}":
            _write(writer, 401, "application/json", b'{"error": {"message": "no such key"}}')
        elif path.partition("?")[0] == "/model_info":
            _write(writer, 200, "application/json", _json({"has_chat_template": self.has_chat_template}))
        elif method == "GET":
            _write(writer, 200, "application/json", _json({"data": [{"id": name} for name in self.models]}))
        else:
            await self._answer(self.scripts.pop(0), reader, writer)
        writer.close()
        await writer.wait_closed()

    async def _answer(self, script: Script, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if script.content or script.status != 200:
            _write(writer, script.status, "application/json", script.content)
            return
        _write(writer, 200, "text/event-stream", None)
        for index, event in enumerate(script.events):
            name = f"id: {script.ids[index]}\n".encode() if script.ids else b""
            _chunk(writer, name + b"data: " + _json(event) + b"\n\n")
        if script.tail:
            _chunk(writer, script.tail)
        await writer.drain()
        if script.holds:
            await reader.read()
            self.left.set()
        elif script.is_whole:
            _chunk(writer, b"data: [DONE]\n\n")
            writer.write(b"0\r\n\r\n")
            await writer.drain()


def chat_events(*texts: str, reasoning: str = "", finish: str = "stop") -> list[dict[str, Any]]:
    """The chunks of a chat's answer, with its usage."""
    deltas = [{"role": "assistant", "content": ""}, *([{"reasoning": reasoning}] if reasoning else [])]
    deltas += [{"content": text} for text in texts]
    events = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}], "usage": None} for delta in deltas]
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    return [*events, {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": len(texts)}}]


def completion_events(*texts: tuple[int, str], finish: str = "stop") -> list[dict[str, Any]]:
    """The chunks of completions: the choice and its text."""
    events = [{"choices": [{"index": index, "text": text, "finish_reason": None}]} for index, text in texts]
    last = [{"index": index, "text": "", "finish_reason": finish} for index in {index for index, _ in texts}]
    return [*events, {"choices": last}]


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _write(writer: asyncio.StreamWriter, status: int, kind: str, content: bytes | None) -> None:
    length = "Transfer-Encoding: chunked" if content is None else f"Content-Length: {len(content)}"
    writer.write(f"HTTP/1.1 {status} OK\r\nContent-Type: {kind}\r\nConnection: close\r\n{length}\r\n\r\n".encode())
    writer.write(content or b"")


def _chunk(writer: asyncio.StreamWriter, content: bytes) -> None:
    writer.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")
