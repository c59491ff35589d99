"""The relay loses and reorders nothing, whatever its delay is, and says when nobody is behind it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from tests.cluster.relay import Relay

HOST = "127.0.0.1"


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[int]:
    """A server, whose connections have ended when this ends."""
    connections: set[asyncio.Task[None]] = set()

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        await serve(reader, writer)
        writer.close()

    async with await asyncio.start_server(serve_one, HOST, 0) as server:
        yield server.sockets[0].getsockname()[1]
    if connections:
        await asyncio.wait(connections)
    await asyncio.sleep(0)  # What was closed last is gone in the next turn.


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(1000):
        writer.write(chunk)
        await writer.drain()


async def test_bytes_come_in_order_while_the_delay_changes() -> None:
    sent = bytes(range(256)) * 2000
    async with serving(echo) as upstream:
        relay = Relay(HOST, upstream)
        async with serving(relay.serve) as port:
            reader, writer = await asyncio.open_connection(HOST, port)
            for first in range(0, len(sent), 4096):
                relay.delay = 0.02 if first // 4096 % 3 == 0 else 0.0
                writer.write(sent[first : first + 4096])
                await writer.drain()
            assert await reader.readexactly(len(sent)) == sent
            writer.close()


async def test_an_end_upstream_ends_the_connection() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(3))

    async with serving(hang_up) as upstream, serving(Relay(HOST, upstream).serve) as port:
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(b"bye")
        assert await reader.readexactly(3) == b"bye"
        assert await ended(reader)
        writer.close()


async def test_nobody_upstream_ends_the_connection() -> None:
    async with serving(echo) as upstream:
        pass
    async with serving(Relay(HOST, upstream).serve) as port:
        reader, writer = await asyncio.open_connection(HOST, port)
        assert await ended(reader)
        writer.close()


async def ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True
