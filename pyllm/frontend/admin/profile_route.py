"""`POST /admin/profile`: the time of the next steps by op, as a table or as a Chrome trace.

Knows neither how steps are recorded nor why only one profile runs at a time.
"""

import asyncio
import zlib
from typing import Annotated, Any, Literal

import msgspec

from pyllm.frontend.http.routing import JSONBody, QueryParameter, Response, ResponseSpec, Route, post
from pyllm.frontend.openai.error_format import ERROR_RESPONSES
from pyllm.frontend.requests.server_state import ServerState
from pyllm.wire.profiles import MAX_PROFILE_SECONDS, MAX_PROFILE_STEPS, ProfileOutcome, RankTimes

# The index of a core, as `GET /admin/cores` lists it.
CoreIndex = Annotated[int | None, QueryParameter(name="core", ge=0)]
FILE_NAME = "pyllm-profile.trace.json.gz"

_GZIP = 16 + zlib.MAX_WBITS  # as zlib calls its format


class ProfileRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A profile of `num_steps`, or of the steps within `seconds` if those are fewer. `seconds` alone: up to 100 steps.

    Without `ranks`, every rank is recorded.
    """

    num_steps: Annotated[int, msgspec.Meta(ge=1, le=MAX_PROFILE_STEPS)] | None = None
    seconds: Annotated[float, msgspec.Meta(gt=0, le=MAX_PROFILE_SECONDS)] | None = None
    format: Literal["table", "trace"] = "table"
    ranks: Annotated[list[Annotated[int, msgspec.Meta(ge=0)]], msgspec.Meta(min_length=1)] | None = None


class ProfileReport(msgspec.Struct):
    """Each rank's ops, in falling order of their time. The profile took `seconds`; `note` says what is missing."""

    ended_by: Literal["steps", "seconds"]
    seconds: float
    note: str
    ranks: list[RankTimes]


def profile_route(state: ServerState) -> Route:
    """The route, for one server."""

    @post(
        "/admin/profile",
        summary="Record the next steps of the core that `core` names, or of the first that is ready: the time of each "
        "op on each rank, or a Chrome trace",
        responses={200: ResponseSpec(ProfileReport), **ERROR_RESPONSES, 409: ERROR_RESPONSES[400]},
    )
    async def profile(data: JSONBody[ProfileRequest], core: CoreIndex = None) -> Response[Any]:
        most = 20 if data.seconds is None else MAX_PROFILE_STEPS
        num_steps = most if data.num_steps is None else data.num_steps
        seconds = 30.0 if data.seconds is None else data.seconds
        with_trace = data.format == "trace"
        outcome = await state.client.profile(num_steps, seconds, with_trace=with_trace, ranks=data.ranks, core=core)
        report = _report(outcome, num_steps, with_trace=with_trace)
        if not with_trace:
            return Response(report)
        trace = await asyncio.to_thread(chrome_trace, report, [rank.events for rank in outcome.ranks])
        headers = {"Content-Disposition": f'attachment; filename="{FILE_NAME}"'}
        return Response(trace, media_type="application/gzip", headers=headers)

    return profile


def chrome_trace(report: ProfileReport, events: list[bytes]) -> bytes:
    """One trace in gzip of all ranks' events, which are JSON arrays in gzip, one rank after the other.

    Perfetto and chrome://tracing open it; its `otherData` has the report.
    """
    packer = zlib.compressobj(wbits=_GZIP)
    head = msgspec.json.encode({"displayTimeUnit": "ms", "otherData": report})
    parts = [packer.compress(head[:-1] + b',"traceEvents":[')]
    separator = b""
    for packed in events:
        if packed:
            parts += [packer.compress(separator), packer.compress(zlib.decompress(packed, _GZIP)[1:-1])]
            separator = b","
    return b"".join([*parts, packer.compress(b"]}"), packer.flush()])


def _report(outcome: ProfileOutcome, num_steps: int, *, with_trace: bool) -> ProfileReport:
    ranks = [rank.times for rank in outcome.ranks]
    notes = []
    if outcome.ended_by == "steps":
        ended_by: Literal["steps", "seconds"] = "steps"
    else:
        ended_by, found = "seconds", max((rank.num_steps for rank in ranks), default=0)
        missing = "no step: there was no traffic" if not found else f"{found} of {num_steps} steps"
        notes.append(f"{outcome.seconds:.0f} s had {missing}")
    if untraced := sum(rank.untraced for rank in ranks):
        notes.append(f"the trace leaves out {untraced} events, as it is full; the table has them")
    if with_trace and (empty := [rank.times.rank for rank in outcome.ranks if not rank.events]):
        notes.append(f"the trace leaves out ranks {', '.join(map(str, empty))}, as it is full")
    return ProfileReport(ended_by, outcome.seconds, "; ".join(notes), ranks)
