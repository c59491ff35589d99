"""Many HTTP clients in one process: each reads one stream of events to its end, and parses little of it."""

import asyncio
import time
from array import array
from multiprocessing.connection import Connection
from typing import NamedTuple, cast

import uvloop


class Load(NamedTuple):
    """`streams` connections at once, each with the request `body`; the usage at the end must be `num_tokens`."""

    host: str
    port: int
    streams: int
    body: bytes
    num_tokens: int


class Progress(NamedTuple):
    """The events so far, and the streams that ended wrongly.

    `pause_p99` is the 99th percentile of the seconds between two reads of a stream, while all streams flowed; 0 before
    that is known.
    """

    events: int
    errors: int
    pause_p99: float


def main(load: Load, connection: Connection) -> None:
    """Run the process. Sends a `Progress` three times: all streams flow, the first has ended, all have ended."""
    uvloop.run(_read(load, connection))


async def _read(load: Load, connection: Connection) -> None:
    readers = _Readers(load, connection)
    loop = asyncio.get_running_loop()
    for _ in range(load.streams):
        await loop.create_connection(lambda: _Reader(readers), load.host, load.port)
    await readers.all_ended


class _Readers:
    def __init__(self, load: Load, connection: Connection) -> None:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {load.host}\r\nconnection: close\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(load.body)}\r\n\r\n"
        self.request = head.encode() + load.body
        self.usage = b'"completion_tokens":%d,' % load.num_tokens
        self.all_ended = asyncio.get_running_loop().create_future()
        self.events = 0
        self.pauses = array("d")
        self._flowing: array[float] | None = None
        self._errors = 0
        self._num_waiting = self._num_open = self._num_streams = load.streams
        self._connection = connection

    def begun(self) -> None:
        self._num_waiting -= 1
        if not self._num_waiting:
            self._report()
            del self.pauses[:]

    def ended(self, well: bool) -> None:
        self._errors += not well
        if self._num_open == self._num_streams:
            self._flowing = self.pauses[:]
            self._report()
        self._num_open -= 1
        if not self._num_open:
            self._report()
            self.all_ended.set_result(None)

    def _report(self) -> None:
        pauses = sorted(self._flowing or ())
        p99 = pauses[len(pauses) * 99 // 100] if pauses else 0.0
        self._connection.send(Progress(self.events, self._errors, p99))


class _Reader(asyncio.Protocol):
    """Reads one stream; `tail` has its last bytes, enough for the end of the stream."""

    def __init__(self, readers: _Readers) -> None:
        self._readers = readers
        self._tail = b""
        self._last = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(self._readers.request)  # uvloop's is none by inheritance

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if not self._tail:
            self._readers.begun()
        else:
            self._readers.pauses.append(now - self._last)
        self._last = now
        self._readers.events += data.count(b"data: ")
        self._tail = data if len(data) > 500 else self._tail[-500:] + data

    def connection_lost(self, error: Exception | None) -> None:
        done = self._tail.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        self._readers.ended(error is None and done and self._readers.usage in self._tail)
