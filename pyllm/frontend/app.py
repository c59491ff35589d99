"""The Litestar application: every route, every error in its API's shape. Starts nothing (`process.py` does)."""

from functools import cache
from importlib import resources
from typing import Any

import msgspec
from litestar import Litestar, MediaType, Request, Response, get
from litestar.datastructures import State
from litestar.openapi.datastructures import ResponseSpec

from pyllm import __version__
from pyllm.errors import PyllmError
from pyllm.frontend import metrics
from pyllm.frontend.anthropic.messages import count_tokens_route, messages_route
from pyllm.frontend.error_answer import error_body
from pyllm.frontend.failure import MediaTypeError, decoding_error, describe
from pyllm.frontend.openai.chat import chat_route
from pyllm.frontend.openai.completions import completions_route
from pyllm.frontend.openai.models import models_routes
from pyllm.frontend.openai.tokenization import detokenize_route, tokenize_route
from pyllm.frontend.openapi import openapi_document
from pyllm.frontend.request_context import context_of
from pyllm.frontend.responses.routes import responses_routes
from pyllm.frontend.server_state import ServerState

MAX_BODY_BYTES = 10_000_000


class Version(msgspec.Struct):
    """`GET /version`."""

    version: str


class JsonRequest(Request[Any, Any, State]):
    """Decodes a body strictly, as the handler's own type; Litestar would take "5" for 5."""

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

    @get(
        "/health",
        sync_to_thread=False,
        summary="200 while requests are taken, 503 otherwise",
        responses=dict.fromkeys((200, 503), ResponseSpec(None)),
    )
    def health() -> Response[bytes]:
        return Response(b"", status_code=200 if state.healthy else 503, media_type=MediaType.TEXT)

    @get("/version", sync_to_thread=False, summary="pyllm's version")
    def version() -> Version:
        return Version(__version__)

    @get(
        "/metrics",
        summary="Metrics in Prometheus' text format",
        responses={200: ResponseSpec(str, media_type=MediaType.TEXT)},
    )
    async def show_metrics() -> Response[bytes]:
        try:
            stats = await state.client.stats()
        except (PyllmError, TimeoutError):
            stats = {}
        return Response(state.metrics.expose(stats), media_type=metrics.CONTENT_TYPE)

    @cache
    def document() -> bytes:
        return msgspec.json.encode(openapi_document(app.routes, __version__))

    @get("/openapi.json", sync_to_thread=False, include_in_schema=False)
    def show_document() -> Response[bytes]:
        return Response(document(), media_type=MediaType.JSON)

    @get("/docs", sync_to_thread=False, include_in_schema=False)
    def show_docs() -> Response[bytes]:
        return Response(_docs_page(), media_type=MediaType.HTML)

    app = Litestar(
        route_handlers=[
            completions_route(state),
            chat_route(state),
            models_routes(state),
            responses_routes(state),
            messages_route(state),
            count_tokens_route(state),
            tokenize_route(state),
            detokenize_route(state),
            health,
            version,
            show_metrics,
            show_document,
            show_docs,
        ],
        request_class=JsonRequest,
        request_max_body_size=MAX_BODY_BYTES,
        exception_handlers={Exception: _answer_error},
        openapi_config=None,
        logging_config=None,
    )
    return app


def _answer_error(request: Request[Any, Any, Any], error: Exception) -> Response[msgspec.Struct]:
    failure = describe(error)
    body = error_body(request.scope["path"], failure, context_of(request).request_id)
    return Response(body, status_code=failure.status)


@cache
def _docs_page() -> bytes:
    return resources.files("pyllm.frontend").joinpath("docs.html").read_bytes()


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)
