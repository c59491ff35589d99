"""`GET /v1/models` and `/v1/models/{id}`."""

import time

import msgspec

from pyllm.frontend.http.routing import FromPath, Request, Route, get
from pyllm.frontend.openai.error_format import LOOKUP_ERROR_RESPONSES
from pyllm.frontend.openai.protocol import ModelCapabilities, ModelCard, ModelList
from pyllm.frontend.requests.model_tags import same_names
from pyllm.frontend.requests.request_context import context_of
from pyllm.frontend.requests.server_state import ServerState
from pyllm.frontend.text.fill_in_the_middle import can_fill_middle
from pyllm.wire.messages import Adapter


def models_routes(state: ServerState) -> list[Route]:
    """The routes, for one server."""
    model = state.client.model
    created = int(time.time())
    cards = {
        name: ModelCard(
            id=name,
            created=created,
            max_model_len=model.max_model_len,
            root=model.name,
            model_impl=model.model_impl,
            batch_invariant=model.batch_invariant,
            capabilities=capabilities_of(state),
        )
        for name in state.models.names
    }

    def card_of(adapter: Adapter) -> ModelCard:
        base = cards[state.model_name]
        return msgspec.structs.replace(base, id=adapter.name, root=adapter.path, parent=state.model_name)

    @get("/v1/models", summary="List the models of this server, and its adapters", responses=LOOKUP_ERROR_RESPONSES)
    def list_models() -> ModelList:
        return ModelList([*cards.values(), *map(card_of, state.models.adapters)])

    @get("/v1/models/{model_id:path}", summary="Describe a model or an adapter", responses=LOOKUP_ERROR_RESPONSES)
    async def show_model(request: Request, model_id: FromPath[str]) -> ModelCard:
        context = context_of(request)
        await state.models.choose(context, model_id)
        if not context.adapter:
            return next(cards[same] for same in same_names(model_id) if same in cards)
        return next(card_of(adapter) for adapter in state.models.adapters if adapter.name == context.model_name)

    return [list_models, show_model]


def capabilities_of(state: ServerState) -> ModelCapabilities:
    """The tasks that the model of a server can do."""
    can_chat = state.chat_template is not None and state.client.model.can_generate
    return ModelCapabilities(
        completion_chat=can_chat,
        function_calling=can_chat and state.chat.reads_calls,
        completion_fim=can_fill_middle(state.tokenizer),
    )
