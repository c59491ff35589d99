"""HTTP answers that are pushed: the sender writes them itself, without a queue, task or wake-up per answer.

Knows ASGI, slow readers, and HTTP's chunks, which it writes itself if the server hands it the transport. Does not know
the content.
"""

import asyncio
import logging
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, NamedTuple, Protocol, cast

from pyllm.frontend.http.asgi import Message, Receive, Scope, Send
from pyllm.frontend.http.write_batcher import WriteBatcher

# Where a scope may have its `Connection`; without it every part of a body goes through ASGI's `send`.
CONNECTION = "pyllm.connection"
# Seconds for which a reader may take nothing at all before its answer is given up.
READER_PATIENCE = 60.0
# The first lines of HTTP chunks, by size, for chunks of a token; larger chunks build their own.
_CHUNK_HEADS = [b"%x\r\n" % size for size in range(2048)]

logger = logging.getLogger(__name__)


class Connection(NamedTuple):
    """The server's transport of a connection, and the batcher that all of the server's connections share."""

    transport: asyncio.WriteTransport
    batcher: WriteBatcher


class Channel:
    """The sending half of one HTTP exchange.

    A message goes to the socket in the same turn of the event loop, unless the reader is slow: then a task waits for
    the socket and the channel is `blocked` until `on_drained` is called. A sender should merge its data until then.
    """

    __slots__ = (
        "_batcher",
        "_draining",
        "_num_silent_ticks",
        "_on_drained",
        "_on_stalled",
        "_patience",
        "_send",
        "_transport",
        "_waiting",
        "blocked",
        "stalled",
        "started",
    )

    def __init__(
        self,
        send: Send,
        connection: Connection | None,
        on_drained: Callable[[], None],
        on_stalled: Callable[[], object],
        patience: float,
    ) -> None:
        self.started = False
        self.stalled = False
        self.blocked = False  # the reader still has to take what was sent before
        self._transport = None if connection is None else connection.transport
        self._batcher = None if connection is None else connection.batcher
        # The declared type is an awaitable; it is a coroutine function in every server.
        self._send = cast("Callable[[Message], Coroutine[Any, Any, None]]", send)
        self._on_drained = on_drained
        self._on_stalled = on_stalled
        self._patience = patience
        self._waiting: deque[Message] = deque()
        self._draining: asyncio.Task[None] | None = None
        self._num_silent_ticks = 0

    def start(self, status: int, content_type: bytes, *headers: tuple[bytes, bytes]) -> None:
        """Send the status and the headers."""
        self.started = True
        self._push(
            {"type": "http.response.start", "status": status, "headers": [(b"content-type", content_type), *headers]}
        )

    def write(self, body: bytes, before: bytes = b"", after: bytes = b"") -> None:
        """Send a part of a body that was started without its length: the new `body` between two fixed texts."""
        self._num_silent_ticks = 0
        transport, batcher = self._transport, self._batcher
        if transport is None or batcher is None or self.blocked or transport.get_write_buffer_size():
            self._push({"type": "http.response.body", "body": before + body + after, "more_body": True})
        else:
            size = len(before) + len(body) + len(after)
            head = _CHUNK_HEADS[size] if size < len(_CHUNK_HEADS) else b"%x\r\n" % size
            batcher.add(transport, b"".join((head, before, body, after, b"\r\n")))

    def finish(self, body: bytes) -> None:
        """Send the last part of the body."""
        self._transport = None  # From now on it belongs to the next exchange.
        self._push({"type": "http.response.body", "body": body, "more_body": False})

    def tick(self) -> int:
        """Called at a fixed rate: gives the number of calls since data was last sent, or waited to be taken."""
        self._num_silent_ticks = 0 if self.blocked else self._num_silent_ticks + 1
        return self._num_silent_ticks

    def close(self) -> None:
        """Send nothing more."""
        self._transport = None
        self._waiting.clear()
        if self._draining is not None:
            self._draining.cancel()

    def _push(self, message: Message) -> None:
        if self.blocked:
            self._waiting.append(message)
            return
        if self._batcher is not None:
            self._batcher.flush()  # Parts of this body may be in it.
        sending = self._send(message)
        try:
            # A server's `send` is a coroutine that ends at once when the socket takes the bytes.
            waited_for = sending.send(None)
        except StopIteration:
            return
        self.blocked = True
        self._draining = asyncio.create_task(self._drain(_resume(sending, waited_for)))

    async def _drain(self, sending: Coroutine[Any, Any, None]) -> None:
        try:
            async with asyncio.timeout(self._patience):
                await sending
            while self._waiting:
                async with asyncio.timeout(self._patience):
                    await self._send(self._waiting.popleft())
        except TimeoutError:
            self.stalled = True
            self._on_stalled()
        else:
            self._draining = None
            self.blocked = False
            self._on_drained()


@types.coroutine
def _resume(sending: Coroutine[Any, Any, None], waited_for: Any) -> Generator[Any, Any, None]:
    """The rest of a coroutine that was driven by hand until it yielded `waited_for`."""
    try:
        yield waited_for
    except BaseException:
        sending.close()
        raise
    yield from sending.__await__()


class Answer(Protocol):
    """The source of an answer's content."""

    def begin(self, channel: Channel) -> None:
        """Start the work. An exception here, before anything was sent, becomes an error answer."""

    def drained(self) -> None:
        """The reader has caught up."""

    def end(self) -> None:
        """The exchange has ended: stop the work if it still runs."""


async def push(
    answer: Answer, scope: Scope, receive: Receive, send: Send, *, patience: float = READER_PATIENCE
) -> None:
    """Send an answer: an ASGI application, with the answer bound. When the client disconnects, the answer ends at once.

    Returns when everything is sent or the client has left.
    """
    handler = asyncio.current_task()
    assert handler is not None
    connection = scope.get(CONNECTION)
    channel = Channel(send, connection, answer.drained, handler.cancel, patience)
    try:
        answer.begin(channel)
        # The message comes when the client disconnects, and equally when the answer was sent completely.
        while (await receive())["type"] != "http.disconnect":
            pass
    except asyncio.CancelledError:
        if not channel.stalled:
            raise
        handler.uncancel()  # Returning with an incomplete answer closes the connection.
        logger.warning("a client read nothing for %g s; its connection is closed", patience)
    finally:
        answer.end()
        channel.close()
