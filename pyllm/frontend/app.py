"""The application of one model: all routes, errors in the shape of each API, and the edge. Starts nothing."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from typing import NamedTuple

import msgspec

from pyllm import __version__
from pyllm.config.api_keys import KeyRing
from pyllm.frontend.admin.routes import admin_routes
from pyllm.frontend.answers.idempotency import Idempotency
from pyllm.frontend.anthropic.routes import count_tokens_route, messages_route
from pyllm.frontend.edge.access_log import AccessLog, RouteNames
from pyllm.frontend.edge.answer_headers import AnswerHeaders
from pyllm.frontend.edge.error_answer import render_error
from pyllm.frontend.edge.gateway import Gateway
from pyllm.frontend.edge.middleware import with_middleware
from pyllm.frontend.edge.served import Served
from pyllm.frontend.health import health_routes
from pyllm.frontend.http.asgi import ASGIApp
from pyllm.frontend.http.failure import MethodError, UnknownRouteError, describe
from pyllm.frontend.http.openapi import openapi_document
from pyllm.frontend.http.routes_app import RoutesApp
from pyllm.frontend.http.routing import TEXT, Request, Response, ResponseSpec, Route, get, path_format
from pyllm.frontend.http.unknown_routes import explain_method, explain_unknown_route
from pyllm.frontend.llama_cpp.routes import adapters_route, infill_route
from pyllm.frontend.mistral.routes import fim_route
from pyllm.frontend.observability import metrics
from pyllm.frontend.observability.core_metrics import figures_of_cores
from pyllm.frontend.observability.metrics_history import Looks
from pyllm.frontend.ollama.routes import ollama_routes
from pyllm.frontend.openai.chat_completions import chat_route
from pyllm.frontend.openai.completions import completions_route
from pyllm.frontend.openai.embeddings import embeddings_route
from pyllm.frontend.openai.invocations import invocations_route
from pyllm.frontend.openai.model_list import models_routes
from pyllm.frontend.openai.tokenization import detokenize_route, tokenize_route, tokenizer_info_route
from pyllm.frontend.page.page_files import page_routes
from pyllm.frontend.requests.json_request import decoded
from pyllm.frontend.requests.request_context import context_in
from pyllm.frontend.requests.server_state import ServerState
from pyllm.frontend.responses.routes import responses_routes
from pyllm.frontend.scoring.protocol import FIRST_TEXTS
from pyllm.frontend.scoring.routes import scoring_routes
from pyllm.frontend.server_info import server_info_routes


class Version(msgspec.Struct):
    """`GET /version`."""

    version: str


class ModelApp(NamedTuple):
    """The routes of one model without an edge, and their paths."""

    app: ASGIApp
    paths: list[str]


def create_app(state: ServerState) -> ASGIApp:
    """The application for one engine client, behind its edge. Needs no lifespan events."""
    app, paths = model_app(state)
    return with_edge(app, state, RouteNames(paths))


def with_edge(app: ASGIApp, served: Served, names: RouteNames) -> ASGIApp:
    """An application behind the edge of its server: keys, limits of size and time, counts of requests."""
    server = served.server
    return AccessLog(
        with_middleware(Gateway(app, served), server.middleware),
        names,
        served.http,
        is_logged=server.access_log,
        root_path=server.root_path,
    )


def model_app(state: ServerState) -> ModelApp:
    """All routes for one engine client, which need an edge before them."""

    async def metrics_text(shows_fields: bool) -> bytes:
        cores = await figures_of_cores(state.client)
        totals = await state.shared.totals(state.metrics.counted())
        samples = await asyncio.to_thread(state.sampler.sample)
        return state.metrics.expose(cores, totals, state.condition(), samples.processes, shows_fields=shows_fields)

    rerank_route, score_route, classify_route = scoring_routes(state)
    embed_route = embeddings_route(state)
    # Each route by the field that only its bodies have, or those of the model's kind.
    by_field = {
        "messages": chat_route(state),
        "prompt": completions_route(state),
        "input": classify_route if state.client.model.labels else embed_route,
        "query": rerank_route,
        **dict.fromkeys(FIRST_TEXTS, score_route),
    }

    @get("/metrics/history", summary="The last ten minutes of the metrics that the page draws")
    def show_history() -> Looks:
        return state.history.looks()

    @cache
    def document() -> bytes:
        return msgspec.json.encode(openapi_document(routes.routes, __version__, state.server.root_path))

    @get("/openapi.json", include_in_schema=False)
    def show_document() -> Response[bytes]:
        return Response(document())

    routes = RoutesApp(
        [
            *dict.fromkeys((*by_field.values(), embed_route, classify_route)),
            invocations_route(by_field),
            infill_route(state),
            adapters_route(state),
            fim_route(state),
            *models_routes(state),
            *responses_routes(state),
            messages_route(state),
            count_tokens_route(state),
            *ollama_routes(state),
            tokenize_route(state),
            detokenize_route(state),
            tokenizer_info_route(state),
            *health_routes(state),
            *server_info_routes(state),
            *admin_routes(state),
            version_route(),
            metrics_route(state.keys, metrics_text),
            show_history,
            *([] if state.server.disable_fastapi_docs else [show_document]),
            *page_routes(not state.server.disable_fastapi_docs, state.server.root_path),
        ],
        decode=decoded,
        answer_error=lambda request, error: answer_error(request, error, known),
    )
    known = [path_format(path) for route in routes.routes for path in route.paths]
    app = Idempotency(AnswerHeaders(routes, state.metrics.ignored_fields), state)
    return ModelApp(app, [path for route in routes.routes for path in route.paths])


def version_route() -> Route:
    """`/version`."""

    @get("/version", summary="pyllm's version")
    def version() -> Version:
        return Version(__version__)

    return version


def metrics_route(keys: KeyRing, text: Callable[[bool], Awaitable[bytes]]) -> Route:
    """`/metrics`. `text` makes it; its argument says whether it may have names that requests chose."""

    @get("/metrics", summary="Metrics in Prometheus' text format", responses={200: ResponseSpec(str, media_type=TEXT)})
    async def show_metrics(request: Request) -> Response[bytes]:
        # Everybody may see sums. Where keys tell users apart, only admins may see those names.
        shows_fields = not keys or context_in(request.scope).role == "admin"
        return Response(await text(shows_fields), media_type=metrics.CONTENT_TYPE)

    return show_metrics


def answer_error(request: Request, error: Exception, known: Sequence[str]) -> ASGIApp:
    """The answer to the error of a route, in the shape of the path's API. `known` are the paths that there are."""
    context = context_in(request.scope)
    context.say_field(error)
    failure = describe(error)
    method, path = request.scope["method"], request.scope["path"]
    if isinstance(error, MethodError):
        failure = msgspec.structs.replace(failure, text=explain_method(method, path, failure.allow))
    elif isinstance(error, UnknownRouteError):
        failure = msgspec.structs.replace(failure, text=explain_unknown_route(method, path, known))
    headers, body = render_error(path, failure, context.request_id)
    texts = {name.decode(): value.decode() for name, value in headers}
    return Response(body, status_code=failure.status, headers=texts)
