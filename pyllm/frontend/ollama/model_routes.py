"""`GET /api/tags`, `/api/ps` and `/api/version`, `POST /api/show`: the models and adapters of this server."""

from datetime import UTC, datetime

from pyllm.checkpoint.generation_config import SamplingDefaults
from pyllm.errors import RequestError
from pyllm.frontend.http.routing import JSONBody, Request, ResponseSpec, Route, get, post
from pyllm.frontend.ollama.answer_format import timestamp
from pyllm.frontend.ollama.error_format import ERROR_RESPONSES, LOOKUP_ERROR_RESPONSES
from pyllm.frontend.ollama.model_details import details_of, model_info, modified, weights_bytes
from pyllm.frontend.ollama.model_names import choose_model, listed_name
from pyllm.frontend.ollama.protocol import (
    ModelDetails,
    ModelEntries,
    ModelEntry,
    ModelRequest,
    RunningModel,
    RunningModels,
    Shown,
    ShowRequest,
    Version,
)
from pyllm.frontend.requests.request_context import context_of
from pyllm.frontend.requests.server_state import ServerState
from pyllm.frontend.text.fill_in_the_middle import can_fill_middle

# The version whose API these routes are. Programs ask for one that is new enough.
OLLAMA_VERSION = "0.13.0"
# Ollama's names of the parameters whose defaults a server may have.
_PARAMETERS = {"repetition_penalty": "repeat_penalty", "max_tokens": "num_predict"}
_NEVER = datetime(9999, 1, 1, tzinfo=UTC).timestamp()
# Programs look for this word in a template, to know whether the model fills in the middle.
_SUFFIX_NOTE = "\n{#- /api/generate takes the .Suffix of a gap -#}"
_NO_DETAILS = ModelDetails("", "", "", [], "", "")


def model_routes(state: ServerState) -> list[Route]:
    """The routes, for one server."""
    model, checkpoint = state.client.model, state.checkpoint

    def names() -> list[str]:
        return [*state.models.names, *(adapter.name for adapter in state.models.adapters)]

    def details() -> ModelDetails:
        return _NO_DETAILS if checkpoint is None else details_of(checkpoint)

    def size() -> int:
        return 0 if checkpoint is None else weights_bytes(checkpoint)

    def when() -> str:
        return timestamp(0.0 if checkpoint is None else modified(checkpoint))

    @get("/api/tags", summary="List the models in Ollama's shape", responses=LOOKUP_ERROR_RESPONSES)
    def list_models() -> ModelEntries:
        digest = state.client.fingerprint
        listed = map(listed_name, names())
        return ModelEntries([ModelEntry(name, name, when(), size(), digest, details()) for name in listed])

    @get("/api/ps", summary="List the models that are loaded, in Ollama's shape", responses=LOOKUP_ERROR_RESPONSES)
    def list_running() -> RunningModels:
        digest, expires = state.client.fingerprint, timestamp(_NEVER)
        return RunningModels(
            [
                RunningModel(name, name, size(), digest, details(), expires, 0, model.max_model_len)
                for name in map(listed_name, names())
            ]
        )

    @post(
        "/api/show",
        summary="Describe a model in Ollama's shape",
        responses={200: ResponseSpec(Shown), **ERROR_RESPONSES},
    )
    async def show_model(request: Request, data: JSONBody[ShowRequest]) -> Shown:
        await choose_model(state, context_of(request), required_name(data))
        can_fill = can_fill_middle(state.tokenizer)
        template = "" if state.chat_template is None else state.chat_template.source
        info = {} if checkpoint is None else model_info(checkpoint, model.max_model_len)
        return Shown(
            modelfile=f"FROM {'' if checkpoint is None else checkpoint.name}\n",
            parameters=parameter_lines(state.sampling, model.max_model_len),
            template=template + (_SUFFIX_NOTE if can_fill else ""),
            details=details(),
            model_info=info,
            capabilities=_capabilities(state, can_fill),
            modified_at=when(),
        )

    @get("/api/version", summary="The version of Ollama whose API this is", responses=LOOKUP_ERROR_RESPONSES)
    def show_version() -> Version:
        return Version(OLLAMA_VERSION)

    return [list_models, list_running, show_model, show_version]


def required_name(request: ModelRequest) -> str:
    """The name that a request has in either field.

    Raises:
        RequestError: it has none.
    """
    if name := request.model or request.name:
        return name
    raise RequestError("model is required", "model")


def parameter_lines(sampling: SamplingDefaults, context_length: int) -> str:
    """The defaults of requests in Ollama's names, a line each."""
    given = {_PARAMETERS.get(name, name): value for name, value in sampling.given().items()}
    return "\n".join(f"{name:<30} {value}" for name, value in {**given, "num_ctx": context_length}.items())


def _capabilities(state: ServerState, can_fill: bool) -> list[str]:
    can_generate, can_chat = state.client.model.can_generate, state.chat_template is not None
    known = {
        "completion": can_generate,
        "tools": can_generate and can_chat and state.chat.reads_calls,
        "thinking": can_generate and can_chat and state.chat.has_reasoning,
        "insert": can_generate and can_fill,
        "embedding": True,
    }
    return [name for name, has in known.items() if has]
