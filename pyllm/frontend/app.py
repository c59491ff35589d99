"""The Litestar application: every route, and every error in OpenAI's shape. Starts nothing (`process.py` does)."""

from functools import cache
from typing import Any

import msgspec
from litestar import Litestar, MediaType, Request, Response, get
from litestar.datastructures import State
from litestar.exceptions import InternalServerException
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin

from pyllm import __version__
from pyllm.errors import PyllmError, RequestError
from pyllm.frontend import metrics
from pyllm.frontend.failure import MediaTypeError, decoding_error, describe
from pyllm.frontend.openai.chat import chat_route
from pyllm.frontend.openai.completions import completions_route
from pyllm.frontend.openai.errors import error_response
from pyllm.frontend.openai.models import models_route
from pyllm.frontend.openai.protocol import ErrorResponse
from pyllm.frontend.server_state import ServerState

MAX_BODY_BYTES = 10_000_000


class JsonRequest(Request[Any, Any, State]):
    """Decodes a body strictly, as the handler's own type; Litestar would take "5" for 5."""

    async def body(self) -> bytes:
        """All of the body; raises RequestError where the client left before its end, which is no error of ours."""
        try:
            return await super().body()
        except InternalServerException:
            raise RequestError("The connection ended before the body did.") from None

    async def json(self) -> Any:
        """The body as the type of the handler's `data`.

        Raises:
            MediaTypeError: it is announced as something other than JSON.
            RequestError: it does not decode.
        """
        media_type = self.content_type[0]
        if media_type not in ("", "application/json"):
            raise MediaTypeError(f"The body is announced as {media_type}; send application/json.")
        field = self.route_handler.parsed_data_field
        assert field is not None
        try:
            return _decoder(field.annotation).decode(await self.body())
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise decoding_error(error) from None


def create_app(state: ServerState) -> Litestar:
    """The application for one engine client. Needs no lifespan events."""

    @get("/health", sync_to_thread=False, summary="200 while requests are taken, 503 otherwise")
    def health() -> Response[bytes]:
        return Response(b"", status_code=200 if state.healthy else 503, media_type=MediaType.TEXT)

    @get("/version", sync_to_thread=False, summary="pyllm's version")
    def version() -> dict[str, str]:
        return {"version": __version__}

    @get("/metrics", summary="Metrics in Prometheus' text format")
    async def show_metrics() -> Response[bytes]:
        try:
            stats = await state.client.stats()
        except (PyllmError, TimeoutError):
            stats = {}
        return Response(state.metrics.expose(stats), media_type=metrics.CONTENT_TYPE)

    return Litestar(
        route_handlers=[
            completions_route(state),
            chat_route(state),
            models_route(state),
            health,
            version,
            show_metrics,
        ],
        request_class=JsonRequest,
        request_max_body_size=MAX_BODY_BYTES,
        exception_handlers={Exception: _answer_error},
        openapi_config=OpenAPIConfig(
            title="pyllm",
            version=__version__,
            path="/openapi.json",
            render_plugins=[JsonRenderPlugin(path="/")],
        ),
        logging_config=None,
    )


def _answer_error(request: Request[Any, Any, Any], error: Exception) -> Response[ErrorResponse]:
    del request
    failure = describe(error)
    return Response(error_response(failure), status_code=failure.status)


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)
