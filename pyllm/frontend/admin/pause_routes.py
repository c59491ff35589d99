"""`/pause`, `/resume`, `/sleep`, `/wake_up` and their states, as in vLLM: for trainers. Knows no weights."""

from typing import Annotated, Literal

import msgspec

from pyllm.frontend.admin.core_answers import in_time
from pyllm.frontend.http.routing import QueryParameter, Request, Response, ResponseSpec, Route, get, post
from pyllm.frontend.openai.error_format import ERROR_RESPONSES, LOOKUP_ERROR_RESPONSES
from pyllm.frontend.requests.server_state import ServerState
from pyllm.wire.messages import PauseMode

Mode = Annotated[PauseMode, QueryParameter(name="mode")]
WaitForRequests = Annotated[bool, QueryParameter(name="wait_for_inflight_requests")]
Level = Annotated[int, QueryParameter(name="level", ge=1, le=2)]
ClearCache = Annotated[bool, QueryParameter(name="clear_cache")]

RESPONSES: dict[int, ResponseSpec] = {**LOOKUP_ERROR_RESPONSES, 400: ERROR_RESPONSES[400], 403: ERROR_RESPONSES[400]}
EMPTY: dict[int, ResponseSpec] = {**RESPONSES, 200: ResponseSpec(None)}


class PauseStatus(msgspec.Struct):
    """The answer of `POST /pause` and `POST /resume`."""

    status: Literal["paused", "resumed"]


class PauseState(msgspec.Struct):
    """`GET /is_paused`: whether all cores are paused."""

    is_paused: bool


class SleepState(msgspec.Struct):
    """`GET /is_sleeping`: whether any core sleeps."""

    is_sleeping: bool


def pause_routes(state: ServerState) -> list[Route]:
    """The routes, for one server."""
    client = state.client

    @post(
        "/pause",
        summary="Stop generating: `mode` abort ends all requests, wait lets those end that have begun, keep freezes "
        "them until POST /resume; requests that come meanwhile wait",
        responses=RESPONSES,
    )
    async def pause(
        mode: Mode = "abort", wait_for_inflight_requests: WaitForRequests = False, clear_cache: ClearCache = True
    ) -> PauseStatus:
        pausing = client.pause_generation(
            mode, wait_for_inflight_requests=wait_for_inflight_requests, clear_cache=clear_cache
        )
        await in_time(pausing, "requests still run, and no new ones begin: wait, or pause with another mode")
        return PauseStatus("paused")

    @post("/resume", summary="Go on after POST /pause", responses=RESPONSES)
    async def resume() -> PauseStatus:
        await in_time(client.resume_generation())
        return PauseStatus("resumed")

    @get("/is_paused", summary="Whether generation is paused", responses=RESPONSES)
    async def is_paused() -> PauseState:
        return PauseState(await in_time(client.is_paused()))

    @post(
        "/sleep",
        summary="Pause, and give back the memory of the KV cache; with `level` 2 that of the weights, too",
        responses=EMPTY,
    )
    async def sleep(level: Level = 1, mode: Mode = "abort") -> Response[bytes]:
        await in_time(client.sleep(level, mode), "requests still run, and no new ones begin: wait, or use another mode")
        return Response(b"")

    @post(
        "/wake_up",
        summary="Take memory again, all of it or that of `tags`: weights, kv_cache; with all of it, generation goes on",
        responses=EMPTY,
    )
    async def wake_up(request: Request) -> Response[bytes]:
        # As vLLM's: the name may be there several times.
        tags = [value for name, value in request.query_pairs if name == "tags"]
        await in_time(client.wake_up(tags or None))
        return Response(b"")

    @get("/is_sleeping", summary="Whether memory was given back", responses=RESPONSES)
    async def is_sleeping() -> SleepState:
        return SleepState(await in_time(client.is_sleeping()))

    return [pause, resume, is_paused, sleep, wake_up, is_sleeping]
