"""Routes for routers in front of several servers: what this server serves, and its load.

Field names are SGLang's, whose gateway reads most of them; vLLM's router reads the load. No field tells a file's path.
"""

from msgspec import Struct

from pyllm import __version__
from pyllm.client.submission import SAMPLING_NUMBERS, only_embeds
from pyllm.errors import EngineDeadError
from pyllm.frontend.http.event_ids import model_hash
from pyllm.frontend.http.routing import Route, get
from pyllm.frontend.openai.error_format import LOOKUP_ERROR_RESPONSES
from pyllm.frontend.requests.server_state import ServerState
from pyllm.frontend.text.templates import no_chat_template
from pyllm.parameters.sampling_params import SamplingParams


class ServerInfo(Struct, kw_only=True):
    """`GET /server_info`. Sizes are in tokens, per core of `dp_size`; `max_total_tokens` is the size of its KV cache.

    `model_hash` is part of event ids: servers with the same hash can continue each other's streams.
    """

    model_path: str
    served_model_name: str
    version: str
    context_length: int
    dtype: str
    quantization: str
    kv_cache_dtype: str
    page_size: int
    max_total_tokens: int
    max_prefill_tokens: int
    max_running_requests: int
    model_hash: str
    tp_size: int
    dp_size: int = 1
    pp_size: int = 1


class ModelDescription(Struct, kw_only=True):
    """`GET /model_info`. The model reads and generates text only.

    Without `has_chat_template` the routes for conversations answer 400, unless a request brings a template;
    `chat_template_notice` is the reason for people to read.
    `preferred_sampling_params` are what a request gets for the parameters that it leaves out; without `max_tokens` an
    answer may fill the context.
    """

    model_path: str
    tokenizer_path: str
    served_model_name: str
    max_model_len: int
    vocab_size: int
    has_chat_template: bool
    chat_template_notice: str = ""
    is_generation: bool = True
    has_image_understanding: bool = False
    has_audio_understanding: bool = False
    preferred_sampling_params: dict[str, float]


class ServerLoad(Struct):
    """`GET /load`: the number of running and waiting sequences, by its name in vLLM's server and in vLLM's router.

    SGLang's gateway expects a list from `/get_load`. Without one its load-based policy chooses at random; its other
    policies work.
    """

    server_load: int
    load: int


def server_info_routes(state: ServerState) -> list[Route]:
    """The routes, for one server. The paths with `get_` are older names of the others."""

    @get(
        ["/server_info", "/get_server_info"],
        summary="What this server serves, and with which bounds",
        responses=LOOKUP_ERROR_RESPONSES,
    )
    def server_info() -> ServerInfo:
        return _server_info(state)

    @get(
        ["/model_info", "/get_model_info"],
        summary="Which model this is",
        responses=LOOKUP_ERROR_RESPONSES,
    )
    def model_info() -> ModelDescription:
        return _model_info(state)

    @get(["/load", "/get_load"], summary="How many sequences run or wait", responses=LOOKUP_ERROR_RESPONSES)
    async def load() -> ServerLoad:
        return await _load(state)

    return [server_info, model_info, load]


def _server_info(state: ServerState) -> ServerInfo:
    model = state.client.model
    return ServerInfo(
        model_path=model.name,
        served_model_name=state.model_name,
        version=__version__,
        context_length=model.max_model_len,
        dtype=model.dtype,
        quantization=model.quantization,
        kv_cache_dtype=model.kv_cache_dtype,
        page_size=model.block_size,
        max_total_tokens=model.kv_cache_tokens,
        max_prefill_tokens=model.max_num_batched_tokens,
        max_running_requests=model.max_num_seqs,
        model_hash=model_hash(state.client.fingerprint),
        tp_size=model.tensor_parallel_size,
        dp_size=len(state.client.cores),
        pp_size=model.pipeline_parallel_size,
    )


def _model_info(state: ServerState) -> ModelDescription:
    model = state.client.model
    return ModelDescription(
        model_path=model.name,
        tokenizer_path=model.name,
        served_model_name=state.model_name,
        max_model_len=model.max_model_len,
        vocab_size=model.vocab_size,
        has_chat_template=state.chat_template is not None,
        is_generation=model.can_generate,
        chat_template_notice=_chat_notice(state),
        preferred_sampling_params=_sampling_defaults(state),
    )


def _chat_notice(state: ServerState) -> str:
    """The reason why the model cannot chat; empty where it can."""
    if not state.client.model.can_generate:
        return str(only_embeds(state.client.model))
    return "" if state.chat_template is not None else no_chat_template(state.model_name)


def _sampling_defaults(state: ServerState) -> dict[str, float]:
    neutral = SamplingParams()
    return {name: getattr(neutral, name) for name in SAMPLING_NUMBERS} | state.sampling.given()


async def _load(state: ServerState) -> ServerLoad:
    """The number of sequences that the cores run or queue now.

    Raises:
        EngineDeadError: the cores do not answer.
    """
    try:
        stats = await state.client.stats()
    except TimeoutError:
        raise EngineDeadError("the engine core did not answer in time") from None
    number = sum(stats[name] for name in ("num_running", "num_waiting", "num_held", "num_loading"))
    return ServerLoad(number, number)
