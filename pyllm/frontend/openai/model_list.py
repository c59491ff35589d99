"""`GET /v1/models` and `/v1/models/{id}`."""

import time

from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from pyllm.frontend.openai.error_format import LOOKUP_ERROR_RESPONSES
from pyllm.frontend.openai.protocol import ModelCapabilities, ModelCard, ModelList
from pyllm.frontend.requests.server_state import ServerState, check_model
from pyllm.frontend.text.fill_in_the_middle import can_fill_middle


def models_routes(state: ServerState) -> list[HTTPRouteHandler]:
    """The routes, for one server."""
    model = state.client.model
    created = int(time.time())
    can_chat = state.chat_template is not None
    cards = {
        name: ModelCard(
            id=name,
            created=created,
            max_model_len=model.max_model_len,
            root=model.name,
            model_impl=model.model_impl,
            batch_invariant=model.batch_invariant,
            capabilities=ModelCapabilities(
                completion_chat=can_chat,
                function_calling=can_chat and state.chat.reads_calls,
                completion_fim=can_fill_middle(state.tokenizer),
            ),
        )
        for name in state.model_names
    }

    @get("/v1/models", sync_to_thread=False, summary="List the models of this server", responses=LOOKUP_ERROR_RESPONSES)
    def list_models() -> ModelList:
        return ModelList(list(cards.values()))

    @get(
        "/v1/models/{model_id:path}", sync_to_thread=False, summary="Describe a model", responses=LOOKUP_ERROR_RESPONSES
    )
    def show_model(model_id: FromPath[str]) -> ModelCard:
        name = model_id.removeprefix("/")  # An id may contain slashes, and a path begins with one.
        check_model(state, name)
        return cards[name]

    return [list_models, show_model]
