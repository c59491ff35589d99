"""What a request brings besides its body. Whoever reads headers and keys makes it; routes and generations use it."""

import re
import uuid
from typing import Any, cast

import msgspec
from litestar import Request

from pyllm.errors import RequestError

# Where an ASGI scope has its `RequestContext`.
CONTEXT = "pyllm.context"
MAX_REQUEST_ID = 128

_PRINTABLE = re.compile(r"[!-~]+")


class RequestContext(msgspec.Struct):
    """One request's own id, which is part of its answer's, whose it is, and the seconds that it may take."""

    request_id: str
    tenant: str = ""
    timeout: float | None = None

    def name_request(self, request_id: str | None) -> None:
        """Take the id that the body gives the request, if it gives one.

        Raises:
            RequestError: it is no id: 1 to 128 printable ASCII characters without spaces.
        """
        if request_id is None:
            return
        if not 0 < len(request_id) <= MAX_REQUEST_ID or not _PRINTABLE.fullmatch(request_id):
            text = f"request_id must be 1 to {MAX_REQUEST_ID} printable ASCII characters, got {request_id[:80]!r}"
            raise RequestError(text, "request_id")
        self.request_id = request_id


def context_of(request: Request[Any, Any, Any]) -> RequestContext:
    """The context that was put into the scope; one without a tenant where nobody did."""
    scope = cast("dict[str, Any]", request.scope)
    context = scope.get(CONTEXT)
    if context is None:
        context = scope[CONTEXT] = RequestContext(uuid.uuid4().hex)
    assert isinstance(context, RequestContext)
    return context
