"""Health routes for orchestrators and load balancers: does the process answer, and does it take requests?"""

from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct

from pyllm.client.core_connection import Condition
from pyllm.client.cores import CoreReport
from pyllm.frontend.generation_check import GenerationCheck
from pyllm.frontend.http.routing import TEXT, Response, ResponseSpec, Route, get, route
from pyllm.frontend.requests.server_state import ServerState


class Health(Struct):
    """The condition of a server. `reason` says why it is not ready, or stalled. One ready core is enough."""

    status: str
    reason: str | None = None
    num_ready_cores: int | None = None
    num_cores: int | None = None


def health_routes(state: ServerState) -> list[Route]:
    """The routes, for one server. HEAD is answered, too."""
    check = GenerationCheck(state.client)
    return [
        *condition_routes(state.condition, lambda: state.client.cores),
        generation_route(state.condition, check.trouble),
    ]


def generation_route(condition: Callable[[], Condition], trouble: Callable[[], Awaitable[str]]) -> Route:
    """`/health_generate`. `trouble` gives the reason why the engine generates nothing, or an empty text."""

    @get(
        "/health_generate",
        summary="200 if the engine generates a token; 503 says why it does not",
        responses=dict.fromkeys((200, 503), ResponseSpec(Health)),
    )
    async def generates() -> Response[Health]:
        now = condition()
        reason = await trouble() if now.ready else now.reason
        answer = Health("not generating", reason) if reason else Health("generating")
        return Response(answer, status_code=503 if reason else 200)

    return generates


def condition_routes(condition: Callable[[], Condition], list_cores: Callable[[], Sequence[CoreReport]]) -> list[Route]:
    """Routes that tell the `condition` of a server, and how many of its cores are ready."""

    def empty() -> Response[bytes]:
        return Response(b"", status_code=200 if condition().ready else 503, media_type=TEXT)

    responses = dict.fromkeys((200, 503), ResponseSpec(None))

    @get(
        "/health",
        summary="200 while requests are worked on, 503 otherwise",
        responses=responses,
    )
    def health() -> Response[bytes]:
        return empty()

    # SageMaker's name of `/health`. An OpenAPI document cannot have one operation of two methods.
    @route("/ping", ["GET", "POST"], include_in_schema=False)
    def ping() -> Response[bytes]:
        return empty()

    @get(
        "/health/live",
        summary="200 as long as the process answers; the body says whether the engine is stalled",
    )
    def live() -> Health:
        now = condition()
        return Health("stalled", now.reason) if now.stalled else Health("live")

    @get(
        "/health/ready",
        summary="200 while requests are worked on; 503 says why they are not",
        responses=dict.fromkeys((200, 503), ResponseSpec(Health)),
    )
    def ready() -> Response[Health]:
        now = condition()
        cores = [core for core in list_cores() if not core.is_leaving]
        status = "ready" if now.ready else "paused" if now.paused else "not ready"
        reason = None if now.ready else now.reason
        answer = Health(status, reason, sum(core.condition.ready for core in cores), len(cores))
        return Response(answer, status_code=200 if now.ready else 503)

    return [health, ping, live, ready]
