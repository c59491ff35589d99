"""uvicorn with a graceful shutdown: after a signal it answers probes until the running requests have finished."""

import asyncio
import functools
import logging
import signal
import socket
from collections.abc import Callable
from ssl import SSLContext
from types import FrameType
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pyllm.frontend.edge.error_answer import render_error
from pyllm.frontend.edge.served import Served
from pyllm.frontend.http.asgi import ASGIApp
from pyllm.frontend.http.failure import Failure
from pyllm.frontend.http.pushed_response import CONNECTION, Connection
from pyllm.frontend.http.write_batcher import WriteBatcher
from pyllm.frontend.observability.http_counts import NO_ROUTE
from pyllm.wire.listeners import listen

# Seconds within which the first line and the headers of a request must arrive.
HEAD_PATIENCE = 60.0
# Most bytes of the first line and the headers together, trailers after the body included.
MAX_HEAD_BYTES = 64 << 10
# Seconds for the last bytes of finished answers to be sent.
CLOSE_GRACE = 5
BACKLOG = 4096
# Event-loop turns in which a stopping server still accepts waiting connections, and seconds for their requests to
# arrive and be refused. Closing the port, or a connection with an unread request, would reset them without an answer.
LAST_TURNS = 3
LAST_ANSWERS = 0.1

logger = logging.getLogger(__name__)


class OpenProtocol(HttpToolsProtocol):
    """uvicorn's protocol, except that pushed answers write to the socket: its `send` costs more than the rest.

    It also closes a connection whose request headers do not arrive, or do not end.
    """

    head_patience = HEAD_PATIENCE
    _head_timer: asyncio.TimerHandle | None = None
    _num_head_bytes = 0
    _num_unfinished_bytes = 0  # received while the head was not complete

    def __init__(
        self,
        batcher: WriteBatcher,
        *args: Any,
        on_refused: Callable[[int], None] = lambda status: None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self._batcher = batcher
        self._on_refused = on_refused

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # As uvicorn has it.
        """Called for a new connection."""
        super().connection_made(transport)
        self._connection = Connection(transport, self._batcher)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called when the connection has ended."""
        self._stop_awaiting_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Called for each piece of data that arrives."""
        super().data_received(data)
        if self._head_timer is None:
            return
        self._num_unfinished_bytes += len(data)
        if self._num_unfinished_bytes > MAX_HEAD_BYTES:
            self._refuse_head()

    def on_message_begin(self) -> None:
        """Called by the parser before a request's first line."""
        super().on_message_begin()
        self._num_head_bytes = self._num_unfinished_bytes = 0
        cast("dict[str, Any]", self.scope)[CONNECTION] = self._connection
        if self._head_timer is None:
            self._await_head()

    def on_url(self, url: bytes) -> None:
        """Called by the parser for each piece of the first line's target."""
        self._num_head_bytes += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser for a header, and for a trailer after the body."""
        self._num_head_bytes += len(name) + len(value)
        if self._num_head_bytes <= MAX_HEAD_BYTES:
            super().on_header(name, value)
        elif self._head_timer is None:
            self.transport.close()

    def on_headers_complete(self) -> None:
        """Called by the parser after a request's headers."""
        self._stop_awaiting_head()
        if self._num_head_bytes > MAX_HEAD_BYTES:
            self._refuse_head()
        else:
            super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer data that is not HTTP."""
        self._refuse(Failure(400, msg), b"Bad Request")

    def _refuse_head(self) -> None:
        text = f"The first line and the headers of a request must be at most {MAX_HEAD_BYTES} bytes."
        self._refuse(Failure(431, text), b"Request Header Fields Too Large")

    def _refuse(self, failure: Failure, reason: bytes) -> None:
        """Answer on the connection itself, and close it."""
        self._stop_awaiting_head()
        if self.transport.is_closing():
            return
        self._on_refused(failure.status)
        _, body = render_error("", failure, "")
        head = b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(head % (failure.status, reason, len(body)) + body)
        self.transport.close()

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self.head_patience, self.transport.close)

    def _stop_awaiting_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class HttpServer(uvicorn.Server):
    """Serves an application, that of `served`, until `stop` or a signal; then `await serve(sockets=[...])` returns.

    Make it inside a running event loop.

    SIGTERM or SIGINT drains for at most `grace` seconds, meanwhile `/health` is 503 and requests are refused.
    """

    def __init__(self, app: ASGIApp, served: Served, grace: float, on_started: Callable[[], None]) -> None:
        tls = served.credentials.tls
        protocol = functools.partial(OpenProtocol, WriteBatcher(), on_refused=self._count_refused)
        super().__init__(
            uvicorn.Config(
                app,
                http=cast("type[asyncio.Protocol]", protocol),  # uvicorn only calls it
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # A header must not make a client look local.
                ssl_context_factory=None
                if tls is None
                else lambda config, default: cast("SSLContext", served.credentials.tls),
                headers=[("server", "pyllm")],
                backlog=BACKLOG,
                timeout_graceful_shutdown=CLOSE_GRACE,
            )
        )
        self._served = served
        self._grace = grace
        self._on_started = on_started
        self._stopping: asyncio.Task[None] | None = None
        self._is_signalled = False
        self._listeners: list[socket.socket] = []
        served.credentials.on_tls = self.renew_tls
        self._loop = asyncio.get_running_loop()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen.

        Raises:
            ConfigError: another process listens on the address.
        """
        for listener in sockets or ():
            listen(listener, BACKLOG)  # uvloop listens again, and would not report a failure.
        self._listeners = sockets or []
        await self._accept()
        self._on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the port, then the connections. Clients that connected before get an answer, if only a refusal."""
        for _ in range(LAST_TURNS):
            await asyncio.sleep(0)
        for server in self.servers:
            server.close()
        for listener in self._listeners:
            listener.close()
        await asyncio.sleep(LAST_ANSWERS)
        await super().shutdown(sockets)

    def renew_tls(self) -> None:
        """Accept with the state's new TLS context; connections that are open stay. The port stays bound meanwhile."""
        if not self.started or self.should_exit:
            return
        self.config.ssl = self._served.credentials.tls
        for server in self.servers:
            server.close()
        self._accepting = asyncio.create_task(self._accept())

    async def _accept(self) -> None:
        # Duplicates, so that closing an asyncio server does not close the port.
        await super().startup([listener.dup() for listener in self._listeners])

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain after the first signal. Called between any two instructions of the main thread.

        Later signals change nothing: service managers signal all processes of a service, and the parent this one again.
        A process that does not end is killed by the parent.
        """
        del frame
        if not self._is_signalled:
            self._is_signalled = True
            logger.info("%s: draining for at most %g s", signal.Signals(sig).name, self._grace)
            self._loop.call_soon_threadsafe(self.stop)

    def stop(self) -> None:
        """Drain, and then end; the second time, end at once."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop())
        else:
            self.should_exit = self.force_exit = True

    def _count_refused(self, status: int) -> None:
        """Count data that never became a request; log it where requests are logged."""
        self._served.http.observe("", NO_ROUTE, status, 0.0)
        if self._served.server.access_log:
            logger.info("what came on a connection was no request: answered with %d", status)

    async def _stop(self) -> None:
        await self._served.drain(self._grace)
        self.should_exit = True
