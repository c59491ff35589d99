"""Requests with an Idempotency-Key: the first one runs and is recorded, and every repeat reads the record.

Stands between the edge and the routes, which see ordinary requests. Knows no route, and bodies only as bytes.
"""

import asyncio
import contextlib
import hashlib
import logging
import re
import secrets
import time
from typing import Any, cast

import msgspec

from pyllm.errors import EngineDeadError, RequestError
from pyllm.frontend.http.asgi import ASGIApp, Message, Receive, Scope, Send
from pyllm.frontend.http.event_ids import Position
from pyllm.frontend.http.failure import IdempotencyConflictError, QueueFullError
from pyllm.frontend.http.pushed_response import CONNECTION, READER_PATIENCE
from pyllm.frontend.requests.request_context import CONTEXT, context_in
from pyllm.frontend.requests.server_state import ServerState
from pyllm.frontend.shared.idempotency_records import last_event_id
from pyllm.frontend.shared.messages import Attached, Conflict, Full, Page, Run
from pyllm.frontend.shared.remote_state import Shared, StateLostError

IDEMPOTENCY_KEY = "Idempotency-Key"
# Routes whose answers can be repeated.
PREFIX = "/v1/"

_KEY = re.compile(rb"[ -~]{1,255}")

logger = logging.getLogger(__name__)


class _Exchange:
    """One client's request with its body, and how much of the answer the client has."""

    def __init__(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.body = body
        self.receive = receive
        self.send = send
        self.is_started = False
        self.last_event: str | None = None  # the client has exactly the events up to this one; None: not known

    async def send_on(self, message: Any) -> None:
        """An ASGI `send` that also takes the rest of an answer that broke off, whose head the client has already."""
        if message["type"] == "http.response.start" and self.is_started:
            if message["status"] != 200:
                raise EngineDeadError(f"an answer that broke off cannot go on: status {message['status']}")
            return
        self.is_started = True
        if body := message.get("body"):
            self.last_event = last_event_id(body) if body.endswith(b"\n\n") else None
        await self.send(message)


class _Recorder:
    """An ASGI `send` that never waits. Only complete successes are kept, and no stream that ends with an error.

    An error event has no id, even where the other events have one.
    """

    def __init__(self, shared: Shared, run: int) -> None:
        self._shared = shared
        self._run = run
        self._status = 0
        self._has_ids = False
        self._last = b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._shared.start(self._run, self._status, tuple((name, value) for name, value in message["headers"]))
        elif message["type"] == "http.response.body":
            if body := message["body"]:
                self._has_ids = self._has_ids or body.startswith(b"id: ")
                self._last = body
                self._shared.append(self._run, body)
            if not message.get("more_body", False):
                last_event = self._last.removesuffix(b"\n\n").rpartition(b"\n\n")[2]
                is_error = self._has_ids and not last_event.startswith(b"id: ")
                self._shared.finish(self._run, keep=200 <= self._status < 300 and not is_error)


class Idempotency:
    """The application around the routes."""

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self._app = app
        self._shared = state.shared
        self._runs: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Raises:
            RequestError: the key is malformed, or belongs to another request.
            QueueFullError, EngineDeadError: there is no room for the answer, or it was lost before it began.
        """
        context = context_in(scope)
        key = context.headers.idempotency_key
        # All scopes that come here are HTTP's, but the types do not say so.
        if key is None or scope["method"] != "POST" or not scope["path"].startswith(PREFIX):
            await self._app(scope, receive, send)
            return
        if _KEY.fullmatch(key) is None:
            text = f"the header {IDEMPOTENCY_KEY} must be 1 to 255 printable ASCII characters"
            raise RequestError(text, IDEMPOTENCY_KEY)
        if (body := await _read_body(receive)) is None:
            return
        exchange = _Exchange(scope, body, receive, send)
        digest = hashlib.sha256(b"\0".join([scope["path"].encode(), scope["query_string"], body])).digest()
        origin = Position(context.request_id, context.created, secrets.randbits(63)).format()
        for may_repeat in (True, False):
            try:
                await self._serve(exchange, key.decode(), digest, origin)
                return
            except StateLostError as error:
                if exchange.is_started:
                    await self._go_on(exchange, error)
                    return
                if not may_repeat:  # The first time, all records are gone: the first repeat runs the request again.
                    raise

    async def _serve(self, exchange: _Exchange, key: str, digest: bytes, origin: str) -> None:
        context = context_in(exchange.scope)
        claim = await self._shared.claim(context.tenant, key, digest, origin)
        if isinstance(claim, Conflict):
            raise IdempotencyConflictError(f"this {IDEMPOTENCY_KEY} was used with another request; take a fresh one")
        if isinstance(claim, Full):
            raise QueueFullError(
                f"too many requests with an {IDEMPOTENCY_KEY} are running; try again, or leave it out", 1.0
            )
        try:
            event = context.headers.last_event_id
            offset = await self._shared.find(claim.record, event) if event else 0
            if offset >= 0:
                self._run(exchange, claim)
                await self._follow(exchange, claim.record, offset)
                return
            # The record does not have that event, or not yet: the request resumes as one without a key does.
            if isinstance(claim, Run):
                self._shared.finish(claim.run, keep=False)
        finally:
            self._shared.leave(claim.record)
        await self._app(exchange.scope, _replayed(exchange.body, exchange.receive), exchange.send)

    async def _follow(self, exchange: _Exchange, record: int, offset: int) -> None:
        """Send a record from an offset on, as it grows. A slow reader just reads later."""
        gone = asyncio.create_task(_disconnected(exchange.receive))
        try:
            while (page := await self._read(record, offset, gone)) is not None:
                if page.is_orphaned:
                    self._run(exchange, await self._shared.take_over(record))
                    continue
                if page.is_lost or not page.status:
                    raise StateLostError("the answer was lost; repeat the request")
                async with asyncio.timeout(READER_PATIENCE):
                    if not exchange.is_started:
                        head = {"type": "http.response.start", "status": page.status, "headers": list(page.headers)}
                        await exchange.send_on(head)
                    more = not page.is_over
                    await exchange.send_on({"type": "http.response.body", "body": page.body, "more_body": more})
                if page.is_over:
                    return
                offset += len(page.body)
        except TimeoutError:
            logger.warning("a client took nothing for %g s; its answer is given up", READER_PATIENCE)
        finally:
            gone.cancel()

    async def _read(self, record: int, offset: int, gone: "asyncio.Task[None]") -> Page | None:
        """The next page; None once the client has gone."""
        reading = asyncio.ensure_future(self._shared.read(record, offset))
        try:
            await asyncio.wait({reading, gone}, return_when=asyncio.FIRST_COMPLETED)
            return None if gone.done() else await reading
        finally:
            reading.cancel()

    def _run(self, exchange: _Exchange, claim: Run | Attached | Full) -> None:
        """Run a request if the claim gives it to this process. The run outlives the exchange that started it."""
        if isinstance(claim, Run):
            task = asyncio.create_task(self._record(exchange, claim))
            self._runs.add(task)
            task.add_done_callback(self._runs.discard)

    async def _record(self, exchange: _Exchange, claim: Run) -> None:
        async def abandoned() -> Any:
            with contextlib.suppress(EngineDeadError):  # Without the state, nobody can read the record.
                await self._shared.abandoned(claim.run)
            return {"type": "http.disconnect"}

        gone = asyncio.create_task(abandoned())
        try:
            send = _Recorder(self._shared, claim.run).send
            receive = cast("Receive", lambda: asyncio.shield(gone))
            await self._generate(exchange, receive, send, claim.position, time.monotonic())
        except Exception:
            logger.exception("a request with an %s failed", IDEMPOTENCY_KEY)
        finally:
            self._shared.finish(claim.run, keep=False)  # This changes nothing if the answer is complete.
            gone.cancel()

    async def _go_on(self, exchange: _Exchange, lost: StateLostError) -> None:
        """Send what follows the client's last event, to this client alone."""
        if exchange.last_event is None:
            logger.warning("an answer with an Idempotency-Key broke off: %s", lost)
            return  # Returning with an incomplete answer closes the connection.
        logger.warning("%s: an answer with an Idempotency-Key is generated again from where it broke off", lost)
        arrival = context_in(exchange.scope).arrival
        try:
            await self._generate(exchange, exchange.receive, exchange.send_on, exchange.last_event, arrival)
        except EngineDeadError as error:
            logger.warning("%s", error)

    async def _generate(self, exchange: _Exchange, receive: Receive, send: Send, position: str, arrival: float) -> None:
        """Have the routes answer from a position on, as if the request came without a key and in its own exchange."""
        context = context_in(exchange.scope)
        headers = context.headers.resumed(position.encode("latin-1"))
        context = msgspec.structs.replace(context, headers=headers, arrival=arrival, ticket=None, budgets=None)
        scope = {**exchange.scope, CONTEXT: context}
        scope.pop(CONNECTION, None)
        with context:
            await self._app(scope, _replayed(exchange.body, receive), send)


async def _read_body(receive: Receive) -> bytes | None:
    """The whole body; None if the client left before it had come."""
    parts = []
    while (message := await receive())["type"] == "http.request":
        parts.append(message["body"])
        if not message.get("more_body", False):
            return b"".join(parts)
    return None


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _replayed(body: bytes, then: Receive) -> Receive:
    """An ASGI `receive` that gives a body which was read before, and later the messages of `then`."""
    messages: list[Any] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        return messages.pop() if messages else await then()

    return receive
