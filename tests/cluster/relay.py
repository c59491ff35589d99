"""`python -m tests.cluster.relay LISTEN UPSTREAM`: a TCP relay, each HOST:PORT, that can delay what it passes on.

Each line on stdin is the delay from then on, in seconds, each way; it ends with stdin. Where nobody answers at UPSTREAM
the connection is closed, as a host does on which nothing listens. Knows no bytes.
"""

import asyncio
import contextlib
import sys

CHUNK_BYTES = 1 << 16
MAX_CHUNKS = 256  # on their way, after which the sender has to wait


class Relay:
    """`delay` is that of what is read from now on; the order never changes."""

    def __init__(self, host: str, port: int) -> None:
        self.delay = 0.0
        self._upstream = (host, port)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until either side ends it or breaks."""
        try:
            inner_reader, inner_writer = await asyncio.open_connection(*self._upstream)
        except OSError:
            writer.transport.abort()
            return
        ways = [
            asyncio.create_task(self._pass_on(reader, inner_writer)),
            asyncio.create_task(self._pass_on(inner_reader, writer)),
        ]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        await asyncio.wait(ways)
        writer.transport.abort()
        inner_writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        chunks: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(MAX_CHUNKS)

        async def read() -> None:
            with contextlib.suppress(ConnectionError):
                while chunk := await reader.read(CHUNK_BYTES):
                    await chunks.put((loop.time() + self.delay, chunk))
            await chunks.put((loop.time() + self.delay, b""))

        reading = asyncio.create_task(read())
        try:
            with contextlib.suppress(ConnectionError):
                while True:
                    due, chunk = await chunks.get()
                    await asyncio.sleep(max(0.0, due - loop.time()))
                    if not chunk:
                        break
                    writer.write(chunk)
                    await writer.drain()
        finally:
            reading.cancel()


async def main(listen: str, upstream: str) -> None:
    host, port = upstream.rsplit(":", 1)
    relay = Relay(host, int(port))
    host, port = listen.rsplit(":", 1)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    server = await asyncio.start_server(relay.serve, host, int(port))
    async with server:
        while line := await lines.readline():
            relay.delay = float(line)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
