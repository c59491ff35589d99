"""The list of models, loaded or not; routes with which admins load, unload and rename them.

Paths and fields are OpenAI's and vLLM's; `status` and the paths without `/v1` are those of llama.cpp's router.
"""

import time
from typing import Annotated

import msgspec
from msgspec import Meta

from pyllm.frontend.catalogue.catalogue import Catalogue, CatalogueModel
from pyllm.frontend.http.routing import (
    FromPath,
    JSONBody,
    Request,
    Route,
    get,
    post,
)
from pyllm.frontend.openai.error_format import ERROR_RESPONSES, LOOKUP_ERROR_RESPONSES
from pyllm.frontend.openai.model_list import capabilities_of
from pyllm.frontend.openai.protocol import ModelCapabilities
from pyllm.frontend.requests.request_context import RequestContext, context_in
from pyllm.frontend.requests.request_guards import admins_only


class ModelStatus(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A model's stage; `reason` says why it failed. `num_bytes` is the memory it takes, if that is known."""

    value: str
    reason: str = ""
    num_bytes: int = 0
    pinned: bool = False
    num_waiting: int = 0


class CatalogueCard(msgspec.Struct, kw_only=True):
    """One name of `/v1/models`; an alias's `root` is its model. Some fields are null before it is loaded."""

    id: str
    created: int
    root: str
    status: ModelStatus
    max_model_len: int | None = None
    capabilities: ModelCapabilities | None = None
    object: str = "model"
    owned_by: str = "pyllm"
    parent: str | None = None
    permission: list[str] = []


class CatalogueList(msgspec.Struct):
    """`GET /v1/models` of a catalogue."""

    data: list[CatalogueCard]
    object: str = "list"


class NamedModel(msgspec.Struct):
    """The body of `/v1/models/load` and `/v1/models/unload`."""

    model: str


class AliasRequest(msgspec.Struct, kw_only=True):
    """`POST /v1/models/alias`: the alias stands for one model, or for several by shares; without both it is removed."""

    alias: Annotated[str, Meta(min_length=1, max_length=256)]
    model: str | None = None
    models: dict[str, Annotated[float, Meta(gt=0)]] | None = None


class AliasList(msgspec.Struct):
    """All aliases, each with its models' shares."""

    aliases: dict[str, dict[str, float]]


def catalogue_routes(catalogue: Catalogue) -> list[Route]:
    """The routes, for one catalogue."""
    created = int(time.time())

    def cards(context: RequestContext) -> list[CatalogueCard]:
        found = [model for model in catalogue.models.values() if model.may_be_used_by(context)]
        listed = [_card(model, created) for model in found]
        names = {model.name: card for model, card in zip(found, listed, strict=True)}
        for alias, shares in catalogue.aliases.items():
            if (first := next((name for name in shares if name in names), None)) is not None:
                listed.append(msgspec.structs.replace(names[first], id=alias, root=first))
        for model in found:
            adapters = () if model.service is None else model.service.state.models.adapters
            listed += [
                msgspec.structs.replace(names[model.name], id=each.name, root=each.path, parent=model.name)
                for each in adapters
            ]
        return listed

    @get("/v1/models", summary="List the models of this server, loaded or not", responses=LOOKUP_ERROR_RESPONSES)
    def list_models(request: Request) -> CatalogueList:
        return CatalogueList(cards(context_in(request.scope)))

    @get("/v1/models/{model_id:path}", summary="Describe a model", responses=LOOKUP_ERROR_RESPONSES)
    def show_model(request: Request, model_id: FromPath[str]) -> CatalogueCard:
        context, name = context_in(request.scope), catalogue.known_name(model_id)
        found = next((card for card in cards(context) if card.id == name), None)
        return found or _card(catalogue.find(name, context), created)

    @post(["/v1/models/load", "/models/load"], summary="Load a model, and wait for that", responses=ERROR_RESPONSES)
    async def load(request: Request, data: JSONBody[NamedModel]) -> CatalogueCard:
        model = catalogue.find(data.model, context_in(request.scope))
        await catalogue.load(model)
        return _card(model, created)

    @post(
        ["/v1/models/unload", "/models/unload"],
        summary="Unload a model once its requests have ended; the next request loads it again",
        responses=ERROR_RESPONSES,
    )
    async def unload(request: Request, data: JSONBody[NamedModel]) -> CatalogueCard:
        model = catalogue.find(data.model, context_in(request.scope))
        await catalogue.unload(model)
        return _card(model, created)

    @post("/v1/models/alias", summary="Set an alias, at once, or remove it", responses=ERROR_RESPONSES)
    def set_alias(data: JSONBody[AliasRequest]) -> AliasList:
        catalogue.set_alias(data.alias, data.models or ({data.model: 1.0} if data.model else {}))
        return AliasList({alias: dict(shares) for alias, shares in catalogue.aliases.items()})

    for handler in (load, unload, set_alias):
        handler.guard = admins_only(catalogue.credentials.keys)
    return [load, unload, set_alias, list_models, show_model]


def _card(model: CatalogueModel, created: int) -> CatalogueCard:
    status = ModelStatus(
        value=model.stage,
        reason=model.reason,
        num_bytes=model.news.num_bytes,
        pinned=model.entry.pinned,
        num_waiting=model.num_waiting,
    )
    card = CatalogueCard(id=model.name, created=created, root=model.name, status=status)
    if model.service is None:
        return card
    state = model.service.state
    return msgspec.structs.replace(
        card, max_model_len=state.client.model.max_model_len, capabilities=capabilities_of(state)
    )
