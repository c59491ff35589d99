"""The application: every route, every error in its API's shape, and the edge before them. Starts nothing."""

from functools import cache
from typing import Any

import msgspec
from litestar import Litestar, MediaType, Request, Response, get
from litestar.datastructures import State
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.types import ASGIApp

from pyllm import __version__
from pyllm.errors import PyllmError
from pyllm.frontend import metrics
from pyllm.frontend.edge.gateway import Gateway
from pyllm.frontend.error_answer import error_answer
from pyllm.frontend.failure import MediaTypeError, decoding_error, describe
from pyllm.frontend.health import health_routes
from pyllm.frontend.idempotency import Idempotency
from pyllm.frontend.openai.chat import chat_route
from pyllm.frontend.openai.completions import completions_route
from pyllm.frontend.openai.embeddings import embeddings_route
from pyllm.frontend.openai.models import models_route
from pyllm.frontend.server_state import ServerState


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


def create_app(state: ServerState) -> ASGIApp:
    """The application for one engine client, behind its edge. Needs no lifespan events."""

    @get("/version", sync_to_thread=False, summary="pyllm's version")
    def version() -> dict[str, str]:
        return {"version": __version__}

    @get("/metrics", summary="Metrics in Prometheus' text format")
    async def show_metrics() -> Response[bytes]:
        try:
            stats = await state.client.stats()
        except (PyllmError, TimeoutError):
            stats = {}
        totals = await state.shared.totals(state.metrics.counted())
        return Response(state.metrics.expose(stats, totals), media_type=metrics.CONTENT_TYPE)

    routes = Litestar(
        route_handlers=[
            completions_route(state),
            chat_route(state),
            embeddings_route(state),
            models_route(state),
            *health_routes(state),
            version,
            show_metrics,
        ],
        request_class=JsonRequest,
        request_max_body_size=None,  # The edge bounds every body.
        exception_handlers={Exception: _answer_error},
        openapi_config=OpenAPIConfig(
            title="pyllm",
            version=__version__,
            path="/openapi.json",
            render_plugins=[JsonRenderPlugin(path="/")],
        ),
        logging_config=None,
    )
    return Gateway(Idempotency(routes, state), state)


def _answer_error(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    failure = describe(error)
    headers, body = error_answer(request.scope["path"], failure)
    texts = {name.decode(): value.decode() for name, value in headers}
    return Response(body, status_code=failure.status, media_type=MediaType.JSON, headers=texts)


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)
