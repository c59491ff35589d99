"""`/admin/weights`: the version of the weights, and another one in its place. Knows no files, which the cores read."""

import msgspec

from pyllm.frontend.admin.core_answers import in_time
from pyllm.frontend.admin.pause_routes import RESPONSES
from pyllm.frontend.http.routing import JSONBody, Route, get, post
from pyllm.frontend.requests.server_state import ServerState
from pyllm.wire.messages import SwitchMode


class WeightsRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`path` is a folder or file on the cores' machines, or a repository of the hub.

    `mode` is for requests that have begun: they end with the weights before (`finish`), go on with the
    new ones (`continue`), or end (`abort`).
    """

    path: str
    mode: SwitchMode = "finish"


class WeightsReport(msgspec.Struct):
    """A digest of the weights that new requests are computed with; empty for those that the server was started with."""

    version: str


def weight_routes(state: ServerState) -> list[Route]:
    """The routes, for one server."""
    client = state.client

    @get("/admin/weights", summary="The version of the weights", responses=RESPONSES)
    def show_weights() -> WeightsReport:
        return WeightsReport(client.weights_version)

    @post(
        "/admin/weights",
        summary="Compute with another version of the weights, on all cores; all stay as they are where one is refused",
        responses=RESPONSES,
    )
    async def update_weights(data: JSONBody[WeightsRequest]) -> WeightsReport:
        late = "the weights were not changed in time: GET /admin/weights shows the version"
        return WeightsReport(await in_time(client.update_weights(data.path, data.mode), late))

    return [show_weights, update_weights]
