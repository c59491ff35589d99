"""What a request brings besides its body. Whoever reads headers and keys makes it; routes and generations use it."""

import uuid
from typing import Any, cast

import msgspec
from litestar import Request

# Where an ASGI scope has its `RequestContext`.
CONTEXT = "pyllm.context"


class RequestContext(msgspec.Struct, frozen=True):
    """One request's own id, which is part of its answer's, whose it is, and the seconds that it may take."""

    request_id: str
    tenant: str = ""
    timeout: float | None = None


def context_of(request: Request[Any, Any, Any]) -> RequestContext:
    """The context that was put into the scope; one without a tenant where nobody did."""
    scope = cast("dict[str, Any]", request.scope)
    context = scope.get(CONTEXT)
    if context is None:
        context = scope[CONTEXT] = RequestContext(uuid.uuid4().hex)
    assert isinstance(context, RequestContext)
    return context
