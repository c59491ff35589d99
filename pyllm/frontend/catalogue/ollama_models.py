"""Ollama's API of a catalogue: its lists of models, and requests that load and unload one."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from pyllm.checkpoint.hub import Hub
from pyllm.errors import ConfigError
from pyllm.frontend.catalogue.catalogue import Catalogue, CatalogueModel
from pyllm.frontend.http.failure import UnknownModelError
from pyllm.frontend.http.routing import Request, Response, Route, get
from pyllm.frontend.ollama.answer_format import MakePart, chat_part, generate_part, timestamp
from pyllm.frontend.ollama.error_format import LOOKUP_ERROR_RESPONSES, PREFIX
from pyllm.frontend.ollama.model_details import NO_DETAILS
from pyllm.frontend.ollama.model_files import AbsentModelError, show_files
from pyllm.frontend.ollama.model_names import MissingModelError
from pyllm.frontend.ollama.model_routes import NEVER, model_entries, ollama_version_route, running_models
from pyllm.frontend.ollama.options import keep_seconds
from pyllm.frontend.ollama.protocol import ModelEntries, ModelEntry, Part, RunningModels, Shown
from pyllm.frontend.ollama.routes import empty_answer
from pyllm.frontend.ollama.store_routes import store_routes
from pyllm.frontend.requests.model_tags import listed_name
from pyllm.frontend.requests.request_context import RequestContext, context_in

# Routes whose requests have a `keep_alive`, each with the answer without text that it may have.
_PARTS: dict[str, MakePart | None] = {
    "/api/chat": chat_part,
    "/api/generate": generate_part,
    "/api/embed": None,
    "/api/embeddings": None,
}
_EMPTY = frozenset({b"", b"null", b"[]", b'""'})


class _Body(msgspec.Struct):
    model: Any = None
    name: Any = None
    keep_alive: Any = None
    messages: Raw = Raw()
    prompt: Raw = Raw()
    suffix: Raw = Raw()


class CatalogueRequest(NamedTuple):
    """The parts of a request that a catalogue reads. Without content it only loads its model, or unloads it."""

    path: str
    name: str
    keep_alive: Any
    has_content: bool

    @classmethod
    def of(cls, path: str, content: bytes) -> "CatalogueRequest | None":
        """The parts of a body; None for another API's, or without a name, which its route will say."""
        if not path.startswith(f"{PREFIX}/"):
            return None
        try:
            body = msgspec.json.decode(content, type=_Body)
        except (msgspec.DecodeError, RecursionError):
            return None
        name = body.model or body.name
        has_content = any(bytes(part) not in _EMPTY for part in (body.messages, body.prompt, body.suffix))
        return cls(path, name, body.keep_alive, has_content) if isinstance(name, str) else None

    def find(self, catalogue: Catalogue, context: RequestContext) -> tuple[CatalogueModel, str]:
        """The model that it means, and its name there.

        Raises:
            MissingModelError: there is none, or not for this tenant.
        """
        name = catalogue.known_name(self.name)
        try:
            return catalogue.find(name, context), name
        except UnknownModelError:
            raise MissingModelError(self.name) from None

    def keep_seconds(self) -> float | None:
        """Seconds for which the model stays after this request; None: as the catalogue says.

        Raises:
            RequestError: the time is none.
        """
        return keep_seconds(self.keep_alive) if self.path in _PARTS else None

    async def answer(
        self, catalogue: Catalogue, model: CatalogueModel, context: RequestContext
    ) -> Response[Part] | Response[Shown] | None:
        """The answer to a request for which the model need not be loaded: one that unloads or describes it; else None.

        Raises:
            MissingModelError: the model to describe is not on this machine.
        """
        if self.path != "/api/show":
            return await self._unload(catalogue, model, context)
        entry = model.entry
        if catalogue.is_open(model) or entry.files is None:
            return None
        async with catalogue.reading:
            try:
                shown = await asyncio.to_thread(show_files, entry.files, catalogue.download_dir, entry.max_model_len)
            except AbsentModelError:
                raise MissingModelError(self.name) from None
            except ConfigError:
                return None  # Loading it will say why.
        return Response(shown)

    async def _unload(
        self, catalogue: Catalogue, model: CatalogueModel, context: RequestContext
    ) -> Response[Part] | None:
        """Unload the model, if that is all that the request is for; its answer.

        Where keys exist, a user who is no admin unloads a model only if it is idle and not pinned.
        """
        make_part = _PARTS.get(self.path)
        if make_part is None or self.has_content or self.keep_seconds() != 0:
            return None
        if not catalogue.credentials.keys or context.role == "admin":
            await catalogue.unload(model)
        else:
            catalogue.keep(model, 0)
            catalogue.tick()
        return empty_answer(self.name, "unload", make_part)


def ollama_catalogue_routes(catalogue: Catalogue) -> list[Route]:
    """The routes that are about all models, for one catalogue."""

    @get("/api/tags", summary="List the models in Ollama's shape", responses=LOOKUP_ERROR_RESPONSES)
    def list_tags(request: Request) -> ModelEntries:
        context = context_in(request.scope)
        models = [model for model in catalogue.models.values() if model.may_be_used_by(context)]
        aliases = [alias for alias, shares in catalogue.aliases.items() if {model.name for model in models} & {*shares}]
        return ModelEntries([*(entry for model in models for entry in _entries(model)), *map(_unknown, aliases)])

    @get("/api/ps", summary="List the models that are loaded, in Ollama's shape", responses=LOOKUP_ERROR_RESPONSES)
    def list_loaded(request: Request) -> RunningModels:
        context = context_in(request.scope)
        return RunningModels(
            [
                running
                for model in catalogue.models.values()
                if model.service is not None and not model.is_leaving and model.may_be_used_by(context)
                for running in running_models(
                    model.service.state, model.news.num_bytes, _expiry(model, catalogue.seconds_left(model))
                )
            ]
        )

    def has_model(name: str) -> bool:
        return name in catalogue.models or name in catalogue.aliases

    def files() -> Iterator[str]:
        known = (model.news.api for model in catalogue.models.values())
        return (file for api in known if api is not None for file in api.checkpoint.files)

    hub = Hub(cache_dir=catalogue.download_dir or None)
    stores = store_routes(catalogue.credentials.keys, has_model, files, hub)
    return [list_tags, list_loaded, ollama_version_route(), *stores]


def _entries(model: CatalogueModel) -> list[ModelEntry]:
    return [_unknown(model.name)] if model.service is None else model_entries(model.service.state)


def _unknown(name: str) -> ModelEntry:
    """The entry of a name of which nothing is known until its model is loaded."""
    listed = listed_name(name)
    return ModelEntry(listed, listed, timestamp(0.0), 0, "", NO_DETAILS)


def _expiry(model: CatalogueModel, left: float | None) -> float:
    return NEVER if left is None or model.entry.pinned else min(NEVER, time.time() + left)
