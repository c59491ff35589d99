"""The body of a request, decoded strictly as the type that the route names."""

import asyncio
from typing import Any

import msgspec

from pyllm.frontend.http.body_decoding import decode_body
from pyllm.frontend.http.body_shape import find_ignored
from pyllm.frontend.http.failure import MediaTypeError, decoding_error
from pyllm.frontend.http.ignored_fields import RequestFields
from pyllm.frontend.http.routing import Request
from pyllm.frontend.requests.request_context import context_in

# Bytes from which decoding a body may take tens of milliseconds, and runs on a thread.
LARGE_BODY = 1 << 17
# The type that curl names by itself, as in the examples of Ollama's documents. A page of another site may send it
# without asking, too; the edge refuses that (`edge/browser_origin.py`).
CURLS_TYPE, CURLS_PREFIX = "application/x-www-form-urlencoded", "/api/"


async def decoded(request: Request, kind: Any) -> Any:
    """The body of a request as this type.

    Raises:
        MediaTypeError: it is announced as something other than JSON.
        RequestError: it does not decode, or has fields without effect and the server is strict.
    """
    media_type = request.header(b"content-type").partition(";")[0].strip().lower()
    is_curls = media_type == CURLS_TYPE and request.scope["path"].startswith(CURLS_PREFIX)
    if media_type not in ("", "application/json") and not is_curls:
        raise MediaTypeError(f"The body is announced as {media_type}; send application/json.")
    try:
        body = await request.body()
        fields = context_in(request.scope).fields
        if len(body) < LARGE_BODY:
            return _decoded(body, kind, fields)
        return await asyncio.to_thread(_decoded, body, kind, fields)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise decoding_error(error) from None


def _decoded(body: bytes, kind: Any, fields: RequestFields) -> Any:
    if fields.policy != "ignore" and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        find_ignored(body, kind, fields)
    return decode_body(body, kind)
