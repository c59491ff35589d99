"""`GET /api/tags`, `/api/ps` and `/api/version`, `POST /api/show`: the models and adapters of this server."""

from datetime import UTC, datetime

from pyllm.errors import RequestError
from pyllm.frontend.http.routing import JSONBody, Request, ResponseSpec, Route, get, post
from pyllm.frontend.ollama.answer_format import timestamp
from pyllm.frontend.ollama.error_format import ERROR_RESPONSES, LOOKUP_ERROR_RESPONSES
from pyllm.frontend.ollama.model_details import Abilities, details_of, modified, shown_model, weights_bytes
from pyllm.frontend.ollama.model_names import choose_model
from pyllm.frontend.ollama.protocol import (
    ModelEntries,
    ModelEntry,
    ModelRequest,
    OllamaVersion,
    RunningModel,
    RunningModels,
    Shown,
    ShowRequest,
)
from pyllm.frontend.requests.model_tags import listed_name
from pyllm.frontend.requests.request_context import context_of
from pyllm.frontend.requests.server_state import ServerState
from pyllm.frontend.text.fill_in_the_middle import can_fill_middle

# The version whose API these routes are. Programs ask for one that is new enough.
OLLAMA_VERSION = "0.13.0"
NEVER = datetime(9999, 1, 1, tzinfo=UTC).timestamp()


def model_routes(state: ServerState) -> list[Route]:
    """The routes, for one server."""

    @get("/api/tags", summary="List the models in Ollama's shape", responses=LOOKUP_ERROR_RESPONSES)
    def list_tags() -> ModelEntries:
        return ModelEntries(model_entries(state))

    @get("/api/ps", summary="List the models that are loaded, in Ollama's shape", responses=LOOKUP_ERROR_RESPONSES)
    def list_loaded() -> RunningModels:
        return RunningModels(running_models(state))

    @post(
        "/api/show",
        summary="Describe a model in Ollama's shape",
        responses={200: ResponseSpec(Shown), **ERROR_RESPONSES},
    )
    async def show_ollama_model(request: Request, data: JSONBody[ShowRequest]) -> Shown:
        await choose_model(state, context_of(request), required_name(data))
        template = "" if state.chat_template is None else state.chat_template.source
        length = state.client.model.max_model_len
        return shown_model(state.checkpoint, length, state.sampling, template, _abilities(state))

    return [list_tags, list_loaded, show_ollama_model, ollama_version_route()]


def ollama_version_route() -> Route:
    """`/api/version`."""

    @get("/api/version", summary="The version of Ollama whose API this is", responses=LOOKUP_ERROR_RESPONSES)
    def show_ollama_version() -> OllamaVersion:
        return OllamaVersion(OLLAMA_VERSION)

    return show_ollama_version


def model_entries(state: ServerState) -> list[ModelEntry]:
    """The names of a model and its adapters, as they are listed."""
    checkpoint, digest = state.checkpoint, state.client.fingerprint
    when, size, details = timestamp(modified(checkpoint)), weights_bytes(checkpoint), details_of(checkpoint)
    return [ModelEntry(name, name, when, size, digest, details) for name in _names(state)]


def running_models(state: ServerState, num_bytes: int = 0, expires: float = NEVER) -> list[RunningModel]:
    """The same while the model is loaded: with the memory that it takes, if that is known, and its time to leave."""
    checkpoint, context = state.checkpoint, state.client.model.max_model_len
    size, details, until = num_bytes or weights_bytes(checkpoint), details_of(checkpoint), timestamp(expires)
    digest, on_gpu = state.client.fingerprint, size if state.is_on_gpu else 0
    return [RunningModel(name, name, size, digest, details, until, on_gpu, context) for name in _names(state)]


def required_name(request: ModelRequest) -> str:
    """The name that a request has in either field.

    Raises:
        RequestError: it has none.
    """
    if name := request.model or request.name:
        return name
    raise RequestError("model is required", "model")


def _names(state: ServerState) -> list[str]:
    return [*map(listed_name, (*state.models.names, *(adapter.name for adapter in state.models.adapters)))]


def _abilities(state: ServerState) -> Abilities:
    can_generate = state.client.model.can_generate
    can_chat = can_generate and state.chat_template is not None
    return Abilities(
        completion=can_generate,
        embedding=not state.client.model.labels,
        tools=can_chat and state.chat.reads_calls,
        thinking=can_chat and state.chat.has_reasoning,
        insert=can_generate and can_fill_middle(state.tokenizer),
    )
