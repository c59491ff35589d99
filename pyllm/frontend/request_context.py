"""What a request brings besides its body. Whoever reads headers and keys makes it; routes and generations use it."""

import time
import uuid
from collections.abc import Iterable
from typing import Any, cast

import msgspec
from litestar import Request

from pyllm.frontend.event_ids import Position

# Where an ASGI scope has its `RequestContext`.
CONTEXT = "pyllm.context"


class RequestContext(msgspec.Struct, frozen=True):
    """One request's own id, which is part of its answer's, whose it is, and the seconds that it may take.

    `created` is the answer's time, in seconds since the epoch. `position` is where its stream begins, which has ids of
    events then; None: they are not wanted.
    """

    request_id: str
    tenant: str = ""
    timeout: float | None = None
    created: int = msgspec.field(default_factory=lambda: int(time.time()))
    position: Position | None = None


def context_of(request: Request[Any, Any, Any]) -> RequestContext:
    """The context that was put into the scope, or a new one, with what the headers say of events and their ids.

    Raises:
        RequestError: the id of the last event is not one of ours.
    """
    scope = cast("dict[str, Any]", request.scope)
    context = scope.get(CONTEXT)
    if context is None:
        context = scope[CONTEXT] = RequestContext(uuid.uuid4().hex)
    assert isinstance(context, RequestContext)
    if context.position is None and (position := _position(scope["headers"], context)) is not None:
        context = scope[CONTEXT] = msgspec.structs.replace(
            context, request_id=position.request_id, created=position.created, position=position
        )
    return context


def _position(headers: Iterable[tuple[bytes, bytes]], context: RequestContext) -> Position | None:
    wants_ids = False
    for name, value in headers:
        if name == b"last-event-id":
            if value:
                return Position.parse(value.decode("latin-1"))
            wants_ids = True
        elif name == b"idempotency-key" or (name == b"accept" and b"text/event-stream" in value):
            wants_ids = True
    return Position(context.request_id, context.created) if wants_ids else None
