"""`GET /v1/models` and `/v1/models/{id}`."""

import time

from litestar import Router, get
from litestar.params import FromPath

from pyllm.frontend.openai.errors import LOOKUP_ERROR_RESPONSES
from pyllm.frontend.openai.protocol import ModelCard, ModelList
from pyllm.frontend.server_state import ServerState, check_model


def models_routes(state: ServerState) -> Router:
    """The routes, for one server."""
    model = state.client.model
    name = state.model_name
    card = ModelCard(id=name, created=int(time.time()), max_model_len=model.max_model_len, root=model.name)

    @get("/", sync_to_thread=False, summary="List the models of this server", responses=LOOKUP_ERROR_RESPONSES)
    def list_models() -> ModelList:
        return ModelList([card])

    @get("/{model_id:path}", sync_to_thread=False, summary="Describe a model", responses=LOOKUP_ERROR_RESPONSES)
    def show_model(model_id: FromPath[str]) -> ModelCard:
        check_model(state, model_id.removeprefix("/"))  # An id may contain slashes, and a path begins with one.
        return card

    return Router("/v1/models", route_handlers=[list_models, show_model])
