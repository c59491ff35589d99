"""`GET /v1/models`, and the check that a request names a model that is there."""

import time

from litestar import get
from litestar.handlers import HTTPRouteHandler

from pyllm.frontend.failure import UnknownModelError
from pyllm.frontend.openai.protocol import ModelCard, ModelList
from pyllm.frontend.server_state import ServerState


def models_route(state: ServerState) -> HTTPRouteHandler:
    """The route, for one server."""
    model = state.client.model
    name = state.model_name
    card = ModelCard(id=name, created=int(time.time()), max_model_len=model.max_model_len, root=model.name)

    @get("/v1/models", sync_to_thread=False, summary="List the models of this server")
    def list_models() -> ModelList:
        return ModelList([card])

    return list_models


def check_model(state: ServerState, name: str | None) -> None:
    """A request may leave the model out, but not name another one.

    Raises:
        UnknownModelError: it does.
    """
    if name is not None and name != state.model_name:
        raise UnknownModelError(name, state.model_name)
