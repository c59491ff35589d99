"""The request that a route is given: its body is decoded strictly, as the type that the route names."""

import asyncio
from typing import Any

import msgspec
from litestar import Request
from litestar.datastructures import State
from litestar.handlers import BaseRouteHandler

from pyllm.frontend.http.body_decoding import decode_body
from pyllm.frontend.http.body_shape import find_ignored
from pyllm.frontend.http.failure import MediaTypeError, decoding_error
from pyllm.frontend.http.ignored_fields import RequestFields
from pyllm.frontend.requests.request_context import context_in

# Bytes from which decoding a body may take tens of milliseconds, and runs on a thread.
LARGE_BODY = 1 << 17


class JsonRequest(Request[Any, Any, State]):
    """Decodes a body strictly, as the handler's own type; Litestar would take "5" for 5."""

    async def json(self) -> Any:
        """The body as the type of the handler's `data`.

        Raises:
            MediaTypeError: it is announced as something other than JSON.
            RequestError: it does not decode, or has fields without effect and the server is strict.
        """
        return await self.decoded(body_type(self.route_handler))

    async def decoded(self, kind: Any) -> Any:
        """The body as this type; raises as `json` does."""
        media_type = self.content_type[0]
        if media_type not in ("", "application/json"):
            raise MediaTypeError(f"The body is announced as {media_type}; send application/json.")
        try:
            body = await self.body()
            fields = context_in(self.scope).fields
            if len(body) < LARGE_BODY:
                return _decoded(body, kind, fields)
            return await asyncio.to_thread(_decoded, body, kind, fields)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise decoding_error(error) from None


def body_type(handler: BaseRouteHandler) -> Any:
    """The type of a route's body."""
    field = handler.parsed_data_field
    assert field is not None
    return field.annotation


def _decoded(body: bytes, kind: Any, fields: RequestFields) -> Any:
    if fields.policy != "ignore" and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        find_ignored(body, kind, fields)
    return decode_body(body, kind)
