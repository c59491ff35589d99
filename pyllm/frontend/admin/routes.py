"""`/admin`: requests of all clients and what they wait for, blocks, processes, crashes, settings, profiles, cores.

Beside it are the routes that load adapters.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec

from pyllm.client.reports import BlockOwners, Decision, RequestReport, TenantReport
from pyllm.errors import ConfigError, RequestError
from pyllm.frontend.admin.adapter_routes import adapter_routes
from pyllm.frontend.admin.core_answers import in_time
from pyllm.frontend.admin.core_routes import core_routes
from pyllm.frontend.admin.pause_routes import pause_routes
from pyllm.frontend.admin.profile_route import CoreIndex, profile_route
from pyllm.frontend.admin.weight_routes import weight_routes
from pyllm.frontend.http.failure import UnknownRequestError, decoding_error
from pyllm.frontend.http.openapi import BODY
from pyllm.frontend.http.routing import (
    FromPath,
    QueryParameter,
    Request,
    ResponseSpec,
    Route,
    get,
    patch,
    post,
)
from pyllm.frontend.openai.error_format import ERROR_RESPONSES, LOOKUP_ERROR_RESPONSES
from pyllm.frontend.requests.request_guards import admins_only
from pyllm.frontend.requests.server_credentials import ServerCredentials
from pyllm.frontend.requests.server_state import ServerState
from pyllm.parameters.vllm_parameters import CALLS, refuse_other_values
from pyllm.supervision.flight_recorder import CrashRecord, list_records
from pyllm.supervision.process_samples import Samples
from pyllm.wire.messages import MAX_REQUEST_REPORTS

Limit = Annotated[int, QueryParameter(name="limit", ge=1, le=MAX_REQUEST_REPORTS)]
OF_ALL = "of all cores, or of the one that `core` names"
OF_ONE = "of the core that `core` names, or of the first that is ready"

_ADMIN_ERRORS = {403: LOOKUP_ERROR_RESPONSES[404], 400: LOOKUP_ERROR_RESPONSES[404]}
_LOOKUP_ERRORS: dict[int, ResponseSpec] = {**LOOKUP_ERROR_RESPONSES, **_ADMIN_ERRORS}


class RequestList(msgspec.Struct):
    """`GET /admin/requests`: the live requests in order of arrival, then those that have ended."""

    data: list[RequestReport]


class BlockReport(msgspec.Struct):
    """`GET /admin/blocks`. `cached` counts the blocks, in use or free, that are in the prefix cache."""

    num_blocks: int
    block_size: int
    owners: BlockOwners
    cached: int
    num_host_blocks: int
    free_host: int
    cached_host: int
    prefix_queries: int
    prefix_hits: int
    host_prefix_hits: int


class CrashList(msgspec.Struct):
    """`GET /admin/crashes`: the records that are kept, latest first."""

    data: list[CrashRecord]


class TenantList(msgspec.Struct):
    """`GET /admin/tenants`: each tenant's use of the engine so far under the policy `fair`."""

    data: list[TenantReport]


class DecisionList(msgspec.Struct):
    """`GET /admin/decisions`: the decisions of the last steps, oldest first."""

    data: list[Decision]


ResetRunning = Annotated[bool, QueryParameter(name="reset_running_requests")]


class ResetDone(msgspec.Struct):
    """`POST /reset_prefix_cache`, as in vLLM."""

    success: bool = True


class Reloaded(msgspec.Struct):
    """`POST /admin/reload`: the number of API keys that are valid now, and whether a certificate was read, too."""

    num_keys: int
    has_tls: bool


def admin_routes(state: ServerState) -> list[Route]:
    """The routes, for one server."""
    client = state.client

    @get(
        "/admin/requests",
        summary=f"All requests and what each waits for; also the last that ended; {OF_ALL}",
        responses=_LOOKUP_ERRORS,
    )
    async def list_requests(limit: Limit = 100, core: CoreIndex = None) -> RequestList:
        return RequestList(await in_time(client.requests(limit, core=core)))

    @get("/admin/requests/{name:str}", summary="The requests of one id", responses=_LOOKUP_ERRORS)
    async def show_request(name: FromPath[str]) -> RequestList:
        found = await in_time(client.requests(name=name))
        if not found:
            raise UnknownRequestError(name)
        return RequestList(found)

    @get("/admin/blocks", summary=f"The blocks of the KV cache by owner, {OF_ALL}", responses=_LOOKUP_ERRORS)
    async def show_blocks(core: CoreIndex = None) -> BlockReport:
        owners, stats = await in_time(client.block_owners(core=core)), await in_time(client.stats(core))
        return BlockReport(
            num_blocks=stats["num_blocks"],
            block_size=client.model.block_size,
            owners=owners,
            cached=stats["num_cached_blocks"],
            num_host_blocks=stats["num_host_blocks"],
            free_host=stats["num_free_host_blocks"],
            cached_host=stats["num_cached_host_blocks"],
            prefix_queries=stats["prefix_queries"],
            prefix_hits=stats["prefix_hits"],
            host_prefix_hits=stats["host_prefix_hits"],
        )

    @get("/admin/processes", summary="What each process and each card does", responses=_LOOKUP_ERRORS)
    async def show_processes() -> Samples:
        return await asyncio.to_thread(state.sampler.sample)

    @get("/admin/crashes", summary="Records of the last crashes", responses=_LOOKUP_ERRORS)
    async def list_crashes() -> CrashList:
        return CrashList(await asyncio.to_thread(list_records, Path(state.crash_folder)) if state.crash_folder else [])

    @get("/admin/tenants", summary=f"What each tenant has had, and what waits; {OF_ALL}", responses=_LOOKUP_ERRORS)
    async def list_tenants(core: CoreIndex = None) -> TenantList:
        return TenantList(await in_time(client.tenants(core=core)))

    @get("/admin/decisions", summary=f"What the last steps decided, {OF_ONE}", responses=_LOOKUP_ERRORS)
    async def list_decisions(limit: Limit = 100, core: CoreIndex = None) -> DecisionList:
        return DecisionList(await in_time(client.decisions(limit, core=core)))

    @get("/admin/config", summary="The settings that can change while the engine runs", responses=_LOOKUP_ERRORS)
    async def show_config() -> dict[str, Any]:
        return await in_time(client.reconfigure())

    @patch(
        "/admin/config",
        summary="Change some of them, on all cores; all stay where one is refused",
        responses=ERROR_RESPONSES,
        options={BODY: {"type": "object", "description": "Settings of GET /admin/config, with their new values."}},
    )
    async def change_config(request: Request) -> dict[str, Any]:
        # No struct: the core knows which settings there are, and says so.
        try:
            changes = msgspec.json.decode(await request.body(), type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise decoding_error(error) from None
        return await in_time(client.reconfigure(**changes))

    @post(
        "/admin/reload",
        summary="Read the file of API keys and the certificate again, in all API processes",
        responses=ERROR_RESPONSES,
    )
    def reload() -> Reloaded:
        return reload_credentials(state.credentials, state.ask_reload)

    @post(
        "/reset_prefix_cache",
        summary="Forget all cached prefixes; running requests keep their blocks",
        responses={**_LOOKUP_ERRORS, 400: ERROR_RESPONSES[400]},
    )
    async def reset_prefix_cache(reset_running_requests: ResetRunning = False) -> ResetDone:
        refuse_other_values(CALLS, {"reset_running_requests": reset_running_requests})
        await in_time(client.reset_prefix_cache())
        return ResetDone()

    handlers = [
        list_requests,
        show_request,
        show_blocks,
        show_processes,
        list_crashes,
        list_tenants,
        list_decisions,
        show_config,
        change_config,
        reload,
        profile_route(state),
        *core_routes(state, _LOOKUP_ERRORS),
        reset_prefix_cache,
        *pause_routes(state),
        *weight_routes(state),
    ]
    for handler in handlers:
        handler.guard = admins_only(state.keys)
    return [*handlers, *adapter_routes(state)]


def reload_credentials(credentials: ServerCredentials, ask_reload: Callable[[], None]) -> Reloaded:
    """Read the files of keys and of the certificate again, here and, by `ask_reload`, in all other processes.

    Raises:
        RequestError: a file cannot be used; nothing has changed.
    """
    try:
        credentials.reload()
    except ConfigError as error:
        raise RequestError(f"keys and certificates stay as they are: {error}") from None
    ask_reload()
    return Reloaded(num_keys=len(credentials.keys.entries), has_tls=credentials.tls is not None)
