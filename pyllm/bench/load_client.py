"""Keep-alive connections to one server, and the bytes received over them, with the time of each piece.

Received bytes are only stored while a load runs and parsed afterwards, which leaves the CPU to the server. Knows
HTTP, but not the contents of bodies.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Self, cast
from urllib.parse import urlsplit

import httptools

from pyllm.wire.server_trust import DEFAULT_TRUST, ServerTrust

Clock = Callable[[], float]

NO_CONNECTION = "no connection"  # A failure begins so where the server was not reached.

_CLOSED = "the connection closed"


class Exchange:
    """The response to one request. Times are the client's clock in seconds.

    `sent` is the time before sending, and before a new connection is opened. `failure` is the reason for which no
    complete answer came.
    """

    __slots__ = ("failure", "pieces", "sent", "status")

    def __init__(self) -> None:
        self.sent = 0.0
        self.status = 0
        self.pieces: list[tuple[float, bytes]] = []
        self.failure = ""

    @property
    def num_bytes(self) -> int:
        """Size of the answer's body so far."""
        return sum(len(piece) for _, piece in self.pieces)

    @property
    def body(self) -> bytes:
        """The answer's body so far."""
        return b"".join(piece for _, piece in self.pieces)


class LoadClient:
    """Sends requests to the server at `base_url` (http or https), one at a time on each connection.

    The end of a `with` block closes the idle connections.
    """

    def __init__(self, base_url: str, *, trust: ServerTrust = DEFAULT_TRUST, clock: Clock = time.perf_counter) -> None:
        url = urlsplit(base_url)
        assert url.hostname is not None, f"{base_url} names no host: Endpoint checks it"
        self._host = url.hostname
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._ssl = trust.context() if url.scheme == "https" else None
        self._clock = clock
        self._idle: list[_Connection] = []

    async def open(self, number: int) -> None:
        """Open connections in advance, so that no request waits for one. Failures are left for `send` to report."""
        opened = await asyncio.gather(*(self._connect() for _ in range(number)), return_exceptions=True)
        for connection in opened:
            if isinstance(connection, _Connection):
                self._idle.append(connection)
            elif not isinstance(connection, OSError):
                raise connection

    async def send(self, request: bytes) -> Exchange:
        """Send one request, head and body; returns the exchange. A failure is its `failure`, never an exception."""
        while True:
            exchange = Exchange()
            kept = self._kept()
            exchange.sent = self._clock()
            try:
                connection = kept or await self._connect()
            except OSError as error:
                exchange.failure = f"{NO_CONNECTION}: {error.strerror or error}"
                return exchange
            try:
                await connection.carry(request, exchange)
            except BaseException:
                connection.abort()
                raise
            if connection.usable:
                self._idle.append(connection)
            # A server closes idle connections, and may do so while a request is on its way: send it again.
            if kept is None or exchange.failure != _CLOSED or exchange.status:
                return exchange

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for connection in self._idle:
            connection.abort()
        self._idle.clear()

    def _kept(self) -> "_Connection | None":
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    async def _connect(self) -> "_Connection":
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                lambda: _Connection(self._clock), self._host, self._port, ssl=self._ssl
            )
        except UnicodeError as error:  # A name that no host can have, such as one with an empty part.
            raise OSError(f"no host can be called {self._host!r}") from error
        return connection


class _Connection(asyncio.Protocol):
    """One connection, which carries one exchange at a time. `httptools` calls the methods `on_...`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._now = 0.0
        self._exchange = Exchange()
        self._ended: asyncio.Future[None] | None = None
        self.usable = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is one, but does not inherit from it.

    async def carry(self, request: bytes, exchange: Exchange) -> None:
        """Send the request and wait until its answer is complete or has failed."""
        self._exchange = exchange
        self._parser = httptools.HttpResponseParser(self)
        self._ended = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        await self._ended

    def abort(self) -> None:
        self.usable = False
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._now = self._clock()
        if self._ended is None:  # Data without a request: the server says why it closes.
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.usable = False
            self._end(f"what came is no HTTP: {error}")
            self._transport.abort()

    def on_body(self, body: bytes) -> None:
        self._exchange.pieces.append((self._now, body))

    def on_headers_complete(self) -> None:
        self._exchange.status = self._parser.get_status_code()

    def on_message_complete(self) -> None:
        self.usable = self._parser.should_keep_alive()
        if not self.usable:
            self._transport.close()
        self._end("")

    def connection_lost(self, error: Exception | None) -> None:
        # An answer without a length ends with its connection; `read_answer` sees whether it is complete.
        self.usable = False
        self._end(str(error) if error else "" if self._exchange.pieces else _CLOSED)

    def _end(self, failure: str) -> None:
        if self._ended is not None and not self._ended.done():
            self._exchange.failure = failure
            self._ended.set_result(None)
            self._ended = None
