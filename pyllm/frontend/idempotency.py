"""Requests with an Idempotency-Key: the first one runs and is recorded, and whoever repeats it reads the record.

Stands between the edge and the routes, which see an ordinary request. Knows no route and no body but as bytes.
"""

import asyncio
import contextlib
import hashlib
import logging
import re
import secrets
import time
from typing import Any, NamedTuple, cast

import msgspec
from litestar.types import ASGIApp, Receive, Scope, Send

from pyllm.errors import EngineDeadError, RequestError
from pyllm.frontend.event_ids import Position
from pyllm.frontend.failure import IdempotencyConflictError, QueueFullError
from pyllm.frontend.recorder import Recorder
from pyllm.frontend.request_context import CONTEXT, context_in
from pyllm.frontend.server_state import ServerState
from pyllm.frontend.shared.client import StateLostError
from pyllm.frontend.shared.messages import Attached, Conflict, Full, Headers, Page, Run
from pyllm.frontend.shared.records import last_event_id
from pyllm.frontend.stream import READER_PATIENCE, TRANSPORT

IDEMPOTENCY_KEY = "Idempotency-Key"
# Routes whose answers can be repeated.
PREFIX = "/v1/"

_KEY = re.compile(rb"[ -~]{1,255}")

logger = logging.getLogger(__name__)


class _Exchange(NamedTuple):
    """One client's request, whose body has come."""

    scope: Scope
    body: bytes
    receive: Receive
    send: Send


class _LostBeforeStartError(StateLostError):
    """The record is gone, and nothing of it was sent yet."""


class _Reader:
    """How far a client has got: after the event `place`, if it has whole events, and they have ids."""

    def __init__(self) -> None:
        self.is_started = False
        self.place: bytes | None = None

    def took(self, body: bytes) -> None:
        """Enter what is sent to it."""
        self.is_started = True
        event_id = last_event_id(body) if body.endswith(b"\n\n") else None
        if event_id is not None:
            self.place = event_id.encode("latin-1")
        elif body:
            self.place = None


class Idempotency:
    """The application around the routes."""

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self._app = app
        self._shared = state.shared
        self._runs: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Raises:
            RequestError: the key is malformed, or is another request's.
            QueueFullError, EngineDeadError: there is no room for its answer, or that was lost before it began.
        """
        key = context_in(scope).idempotency_key
        # There are no other scopes than of HTTP here, but the types do not say so.
        if key is None or cast("dict[str, Any]", scope)["method"] != "POST" or not scope["path"].startswith(PREFIX):
            await self._app(scope, receive, send)
            return
        if _KEY.fullmatch(key) is None:
            text = f"the header {IDEMPOTENCY_KEY} must be 1 to 255 printable ASCII characters"
            raise RequestError(text, IDEMPOTENCY_KEY)
        await self._serve(scope, receive, send, key.decode())

    async def _serve(self, scope: Scope, receive: Receive, send: Send, key: str) -> None:
        body = await _body(receive)
        if body is None:
            return
        context = context_in(scope)
        digest = hashlib.sha256(b"\0".join([scope["path"].encode(), scope["query_string"], body])).digest()
        origin = Position(context.request_id, context.created, secrets.randbits(63)).format()
        exchange = _Exchange(scope, body, receive, send)
        try:
            await self._serve_recorded(exchange, key, digest, origin)
        except _LostBeforeStartError:
            # What had the record is gone, and with it all that was claimed: whoever is first runs the request again.
            await self._serve_recorded(exchange, key, digest, origin)

    async def _serve_recorded(self, exchange: _Exchange, key: str, digest: bytes, origin: str) -> None:
        context = context_in(exchange.scope)
        claim = await self._shared.claim(context.tenant, key, digest, origin)
        if isinstance(claim, Conflict):
            raise IdempotencyConflictError(f"this {IDEMPOTENCY_KEY} was used with another request; take a fresh one")
        if isinstance(claim, Full):
            raise QueueFullError(
                f"too many requests with an {IDEMPOTENCY_KEY} are running; try again, or leave it out", 1.0
            )
        try:
            offset = await self._find(claim.record, context.last_event_id)
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

    async def _find(self, record: int, last_event_id: bytes | None) -> int:
        try:
            return await self._shared.find(record, last_event_id) if last_event_id else 0
        except StateLostError as error:
            raise _LostBeforeStartError(str(error)) from None

    def _run(self, exchange: _Exchange, claim: Run | Attached | Full) -> None:
        """Run a request whose turn it is, beyond the exchange that asked for it."""
        if isinstance(claim, Run):
            task = asyncio.create_task(self._record(exchange.scope, exchange.body, claim))
            self._runs.add(task)
            task.add_done_callback(self._runs.discard)

    async def _record(self, scope: Scope, body: bytes, claim: Run) -> None:
        recorder = Recorder(self._shared, claim.run)
        # The exchange gives its own ticket back when it ends, which this may outlive.
        context = msgspec.structs.replace(
            context_in(scope),
            arrival=time.monotonic(),
            ticket=None,
            budgets=None,
            idempotency_key=None,
            last_event_id=claim.position.encode(),
        )
        inner = {**scope, CONTEXT: context}
        inner.pop(TRANSPORT, None)
        abandoned = asyncio.create_task(self._abandoned(claim.run))

        async def gone() -> Any:
            await asyncio.wait({abandoned, recorder.over}, return_when=asyncio.FIRST_COMPLETED)
            return {"type": "http.disconnect"}

        try:
            await self._app(cast("Scope", inner), _replayed(body, cast("Receive", gone)), recorder.send)
        except Exception:
            logger.exception("a request with an %s failed", IDEMPOTENCY_KEY)
        finally:
            recorder.close()
            abandoned.cancel()
            if context.ticket is not None:
                context.ticket.release()

    async def _abandoned(self, run: int) -> None:
        with contextlib.suppress(StateLostError):  # Nobody can read it any more.
            await self._shared.abandoned(run)

    async def _follow(self, exchange: _Exchange, record: int, offset: int) -> None:
        """Send a record from an offset on, as it grows. A slow reader just reads later."""
        gone = asyncio.create_task(_disconnected(exchange.receive))
        reader = _Reader()
        try:
            while (page := await self._read(record, offset, gone)) is not None:
                if page.is_orphaned:
                    self._run(exchange, await self._shared.take_over(record))
                    continue
                if page.is_lost or not page.status:
                    raise StateLostError("the answer was lost; repeat the request")
                async with asyncio.timeout(READER_PATIENCE):
                    if not reader.is_started:
                        await _start(exchange.send, page.status, page.headers)
                    reader.took(page.body)
                    offset += len(page.body)
                    more = not page.is_over
                    await exchange.send({"type": "http.response.body", "body": page.body, "more_body": more})
                if page.is_over:
                    return
        except StateLostError as error:
            if not reader.is_started:
                raise _LostBeforeStartError(str(error)) from None
            lost = error
        except TimeoutError:
            logger.warning("a client took nothing for %g s; its answer is given up", READER_PATIENCE)
            return
        finally:
            gone.cancel()
        if reader.place is not None and not gone.done():
            logger.warning("%s: an answer with a key is generated again from where it broke off", lost)
            await self._go_on(exchange, reader.place)
        elif page is not None:
            # Returning with an incomplete answer closes the connection.
            logger.warning("an answer with a key broke off: %s", lost)

    async def _go_on(self, exchange: _Exchange, place: bytes) -> None:
        """Send what follows an event, for this reader alone."""
        context = msgspec.structs.replace(
            context_in(exchange.scope), ticket=None, budgets=None, idempotency_key=None, last_event_id=place
        )
        scope = {**exchange.scope, CONTEXT: context}
        scope.pop(TRANSPORT, None)

        async def send(message: Any) -> None:
            if message["type"] != "http.response.start":
                await exchange.send(message)
            elif message["status"] != 200:
                raise EngineDeadError(f"an answer that broke off could not be gone on with: status {message['status']}")

        try:
            await self._app(cast("Scope", scope), _replayed(exchange.body, exchange.receive), send)
        except EngineDeadError as error:
            logger.warning("%s", error)
        finally:
            if context.ticket is not None:
                context.ticket.release()

    async def _read(self, record: int, offset: int, gone: "asyncio.Task[None]") -> Page | None:
        """The next page; None once the client has gone."""
        reading = asyncio.ensure_future(self._shared.read(record, offset))
        try:
            await asyncio.wait({reading, gone}, return_when=asyncio.FIRST_COMPLETED)
            return await reading if reading.done() else None
        finally:
            reading.cancel()


async def _body(receive: Receive) -> bytes | None:
    """The whole body; None where the client left before it had come."""
    parts = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message["body"])
        if not message.get("more_body", False):
            return b"".join(parts)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _replayed(body: bytes, then: Receive) -> Receive:
    """Gives a body that was read before, and later what `then` gives."""
    is_taken = False

    async def receive() -> Any:
        nonlocal is_taken
        if is_taken:
            return await then()
        is_taken = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


async def _start(send: Send, status: int, headers: Headers) -> None:
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
