"""The application of a catalogue: finds the model of a request, waits until it is loaded, and calls its routes.

Stands behind the edge. Reads of a body only which model it names, and whether it wants a stream.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

import msgspec

from pyllm.errors import PyllmError
from pyllm.frontend.catalogue.catalogue import Catalogue, CatalogueModel
from pyllm.frontend.catalogue.early_stream import EarlyStream
from pyllm.frontend.catalogue.model_service import ModelService
from pyllm.frontend.catalogue.ollama_models import CatalogueRequest
from pyllm.frontend.http.asgi import Message, Receive, Scope, Send
from pyllm.frontend.http.failure import ClientGoneError, describe
from pyllm.frontend.http.routes_app import RoutesApp
from pyllm.frontend.requests.request_context import RequestContext, context_in


class _Named(msgspec.Struct):
    model: Any = None
    stream: Any = None


_UNNAMED = _Named()
_decode = msgspec.json.Decoder(_Named).decode


class CatalogueApp:
    """Answers the catalogue's own `routes`; all others are those of the model that a request names.

    A path for which `may_exist` is false is no route of any model.
    """

    def __init__(self, catalogue: Catalogue, routes: RoutesApp, may_exist: Callable[[str], bool]) -> None:
        self._catalogue = catalogue
        self._routes = routes
        self._may_exist = may_exist
        self._interval = catalogue.server.sse_keep_alive_interval

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Raises:
            UnknownModelError: it names a model that does not exist.
            DeadlineError, EngineDeadError: its model was not loaded in time, or at all.
        """
        if self._routes.has(scope) or not self._may_exist(scope["path"]):
            await self._routes(scope, receive, send)
            return
        body = _Replayed(receive)
        await body.read()
        named, context = _named_in(body.content), context_in(scope)
        context.has_catalogue = True
        query = parse_qs(scope["query_string"].decode("latin-1")).get("model")
        name = named.model if isinstance(named.model, str) else query[0] if query else None
        keep = None
        if (ollamas := CatalogueRequest.of(scope["path"], body.content)) is not None:
            model, name = ollamas.find(self._catalogue, context)
            keep = ollamas.keep_seconds()
            if (answer := await ollamas.answer(self._catalogue, model, context)) is not None:
                await answer(scope, body.receive, send)
                return
        elif name is None and not body.content:
            model = self._catalogue.find_loaded(context)
        else:
            name = None if name is None else self._catalogue.known_name(name)
            model = self._catalogue.find(name, context)
        if name != model.name and (name is None or name in self._catalogue.aliases):
            context.chosen_model = model.name
        # A stream of lines, as Ollama's, has no comments.
        wants_stream = named.stream is True and ollamas is None
        stream = EarlyStream(scope["path"], send)
        try:
            service = await self._acquire(model, context, body, stream if wants_stream else None)
            try:
                await service.app(scope, body.receive, _passing_on(stream, send))
            finally:
                self._catalogue.release(model, keep)
        except PyllmError as error:
            if not stream.is_started:
                raise
            await stream.fail(describe(error), context.request_id)
        finally:
            body.close()

    async def _acquire(
        self, model: CatalogueModel, context: RequestContext, body: "_Replayed", stream: EarlyStream | None
    ) -> ModelService:
        """Wait for the model, and keep a stream open meanwhile; a client that leaves waits no longer."""
        if self._catalogue.is_open(model):
            return await self._catalogue.acquire(model)
        acquiring = asyncio.ensure_future(self._catalogue.acquire(model, _time_left(context)))
        gone = body.watch()
        try:
            while not acquiring.done() and not gone.done():
                interval = self._interval if stream is not None and self._interval else None
                await asyncio.wait({acquiring, gone}, timeout=interval, return_when=asyncio.FIRST_COMPLETED)
                if not acquiring.done() and not gone.done() and stream is not None:
                    await stream.comment()
            if not acquiring.done():
                raise ClientGoneError("The client left before its model was loaded.")
            return acquiring.result()
        except BaseException:
            acquiring.cancel()
            acquiring.add_done_callback(lambda done: self._give_back(done, model))
            raise

    def _give_back(self, acquiring: "asyncio.Future[ModelService]", model: CatalogueModel) -> None:
        """Release a model that was acquired for a request which has ended meanwhile."""
        if not acquiring.cancelled() and acquiring.exception() is None:
            self._catalogue.release(model)


def _passing_on(stream: EarlyStream, send: Send) -> Send:
    # Returns the server's coroutine instead of awaiting it: pushed answers drive that one by hand.
    return stream.send if stream.is_started else send


class _Replayed:
    """A request's body, read once and given again, and what comes after it."""

    def __init__(self, receive: Receive) -> None:
        self.content = b""
        self._receive = receive
        self._is_given = False
        self._gone: asyncio.Task[Message] | None = None

    async def read(self) -> None:
        """Read the whole body, which the edge bounds."""
        parts, more = [], True
        while more:
            message = await self._receive()
            parts.append(message["body"])
            more = message.get("more_body", False)
        self.content = b"".join(parts)

    def watch(self) -> "asyncio.Task[Message]":
        """The client's end, from now on."""
        self._gone = asyncio.ensure_future(self._receive())
        return self._gone

    async def receive(self) -> Message:
        """The body in one piece; then the end."""
        if not self._is_given:
            self._is_given = True
            return {"type": "http.request", "body": self.content, "more_body": False}
        gone, self._gone = self._gone, None
        return await (self._receive() if gone is None else gone)

    def close(self) -> None:
        """Stop watching."""
        if self._gone is not None:
            self._gone.cancel()


def _named_in(body: bytes) -> _Named:
    """The model of a body; none where it does not decode, which its route will say."""
    try:
        return _decode(body) if body else _UNNAMED
    except (msgspec.DecodeError, RecursionError):
        return _UNNAMED


def _time_left(context: RequestContext) -> float | None:
    if context.timeout is None:
        return None
    return max(0.0, context.timeout - (time.monotonic() - context.arrival))
