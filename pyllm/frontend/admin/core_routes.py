"""`/admin/cores`: lists the cores that the server uses, adds one, or removes one. Knows no client or other process."""

import re
from collections.abc import Mapping
from typing import Annotated

import msgspec

from pyllm.frontend.http.failure import UnknownCoreError
from pyllm.frontend.http.routing import FromPath, JSONBody, QueryParameter, ResponseSpec, Route, delete, get, post
from pyllm.frontend.openai.error_format import ERROR_RESPONSES
from pyllm.frontend.requests.server_cores import CoreStatus
from pyllm.frontend.requests.server_state import ServerState

MAX_LEAVE_TIMEOUT = 3600.0

Seconds = Annotated[float | None, QueryParameter(name="timeout", ge=0, le=MAX_LEAVE_TIMEOUT)]


class CoreStatusList(msgspec.Struct):
    """`GET /admin/cores`: all cores, as the answering API process sees them."""

    data: list[CoreStatus]


class NewCore(msgspec.Struct, forbid_unknown_fields=True):
    """The `address` of a `pyllm core`: `tcp://HOST:PORT`, with the server's --curve-keys, or `ipc://PATH`."""

    address: str


def core_routes(state: ServerState, errors: Mapping[int, ResponseSpec]) -> list[Route]:
    """The routes, for one server; `errors` are the errors of a route below /admin whose requests have no body."""
    cores = state.cores

    @get("/admin/cores", summary="The cores that take requests", responses=errors)
    def list_cores() -> CoreStatusList:
        return CoreStatusList(cores.status())

    @post(
        "/admin/cores",
        status_code=201,
        summary="Send requests to another core, too; it must give the same tokens as the others",
        responses=ERROR_RESPONSES,
    )
    async def add_core(data: JSONBody[NewCore]) -> CoreStatusList:
        await cores.add(data.address)
        return CoreStatusList(cores.status())

    @delete(
        "/admin/cores/{index:str}",
        status_code=202,
        summary="Let a core leave, which ends when its requests have; what still runs after `timeout` seconds (by "
        "default --shutdown-timeout) goes on on another one",
        responses=errors,
    )
    async def remove_core(index: FromPath[str], timeout: Seconds = None) -> CoreStatusList:  # noqa: ASYNC109 - a value
        if not re.fullmatch(r"[0-9]{1,9}", index):
            raise UnknownCoreError(f"there is no core {index!r:.80}: GET /admin/cores has the indices")
        await cores.remove(int(index), state.server.shutdown_timeout if timeout is None else timeout)
        return CoreStatusList(cores.status())

    return [list_cores, add_core, remove_core]
