"""Memory that the API process holds for a stream that is open and waits for its next token."""

import asyncio
import json
from collections.abc import Iterator
from typing import cast

import uvloop

from benchmarks.frontend.api_process import HOST, api_process, core_process
from benchmarks.record import Record

FIRST, ALL = 1000, 4000  # streams; memory grows evenly between the two
INTERVAL = 10.0  # seconds from token to token, in which memory is looked at
SETTLE = 1.0


def run() -> Iterator[Record]:
    value = uvloop.run(_kilobytes_each())
    yield {"name": "frontend.idle_stream_kb", "value": round(value, 1), "unit": "KB", "streams": ALL}


async def _kilobytes_each() -> float:
    async with core_process(ALL, INTERVAL) as core, api_process(core) as api:
        readers: list[_Reader] = []
        try:
            await _open(readers, FIRST, api.port)
            first = api.memory()
            await _open(readers, ALL, api.port)
            return (api.memory() - first) / (ALL - FIRST) / 1024
        finally:
            for reader in readers:
                reader.close()


async def _open(readers: "list[_Reader]", number: int, port: int) -> None:
    """Open streams up to a number, and wait until each has had a token."""
    loop = asyncio.get_running_loop()
    while len(readers) < number:
        _, reader = await loop.create_connection(_Reader, HOST, port)
        readers.append(reader)
    for reader in readers:
        await reader.begun
    await asyncio.sleep(SETTLE)


class _Reader(asyncio.Protocol):
    """A stream that reads its tokens and does not end by itself."""

    def __init__(self) -> None:
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        body = json.dumps(
            {
                "messages": [{"role": "user", "content": "Tell me about the sea, the sky and what is between them."}],
                "max_tokens": 1000,
                "ignore_eos": True,
                "stream": True,
            }
        )
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: {len(body)}\r\n\r\n"
        self._transport.write((head + body).encode())

    def data_received(self, data: bytes) -> None:
        if b"data: " in data and not self.begun.done():
            self.begun.set_result(None)

    def close(self) -> None:
        self._transport.abort()
