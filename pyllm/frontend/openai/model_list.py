"""`GET /v1/models` and `/v1/models/{id}`."""

import time

from pyllm.frontend.http.routing import FromPath, Route, get
from pyllm.frontend.openai.error_format import LOOKUP_ERROR_RESPONSES
from pyllm.frontend.openai.protocol import ModelCapabilities, ModelCard, ModelList
from pyllm.frontend.requests.server_state import ServerState, check_model
from pyllm.frontend.text.fill_in_the_middle import can_fill_middle


def models_routes(state: ServerState) -> list[Route]:
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

    @get("/v1/models", summary="List the models of this server", responses=LOOKUP_ERROR_RESPONSES)
    def list_models() -> ModelList:
        return ModelList(list(cards.values()))

    @get("/v1/models/{model_id:path}", summary="Describe a model", responses=LOOKUP_ERROR_RESPONSES)
    def show_model(model_id: FromPath[str]) -> ModelCard:
        check_model(state, model_id)
        return cards[model_id]

    return [list_models, show_model]
