"""OpenAI's requests and responses as structs, with vLLM's additions. Knows names and types, not behaviour.

A field marked `Unsupported` is known but not honoured yet: it passes at its neutral value, which is its default here,
and is refused by name otherwise. Fields nobody knows are refused by the decoder.
"""

import functools
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from pyllm.errors import RequestError
from pyllm.sampling_params import SamplingParams
from pyllm.scheduling_params import SchedulingParams

T = TypeVar("T")
_UNSUPPORTED = {"supported": False}
Unsupported = Annotated[T | None, Meta(extra=_UNSUPPORTED)]

MAX_PROMPTS = 1024


class StreamOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    """What a stream carries besides the text."""

    include_usage: bool | None = False
    continuous_usage_stats: Unsupported[bool] = False
    include_obfuscation: Unsupported[bool] = False


class GenerationRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """What completions and chat share."""

    model: str | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    priority: int | None = None
    timeout: float | None = None
    ttft_target: float | None = None
    tpot_target: float | None = None

    # Accepted without effect.
    user: str | None = None
    store: bool | None = None
    metadata: dict[str, Any] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    service_tier: Literal["auto", "default"] | None = None

    frequency_penalty: Unsupported[float] = 0.0
    presence_penalty: Unsupported[float] = 0.0
    repetition_penalty: Unsupported[float] = 1.0
    length_penalty: Unsupported[float] = 1.0
    logit_bias: Unsupported[dict[str, float]] = {}
    allowed_token_ids: Unsupported[list[int]] = None
    bad_words: Unsupported[list[str]] = []
    min_tokens: Unsupported[int] = 0
    echo: Unsupported[bool] = False
    use_beam_search: Unsupported[bool] = False
    prompt_logprobs: Unsupported[int] = None
    logprob_token_ids: Unsupported[list[int]] = None
    spaces_between_special_tokens: Unsupported[bool] = True
    truncate_prompt_tokens: Unsupported[int] = None
    truncation_side: Unsupported[str] = None
    response_format: Unsupported[dict[str, Any]] = msgspec.field(default_factory=lambda: {"type": "text"})
    structured_outputs: Unsupported[dict[str, Any]] = None
    guided_json: Unsupported[Any] = None
    guided_regex: Unsupported[str] = None
    guided_choice: Unsupported[list[str]] = None
    guided_grammar: Unsupported[str] = None
    guided_decoding_backend: Unsupported[str] = None
    guided_whitespace_pattern: Unsupported[str] = None
    thinking_token_budget: Unsupported[int] = None
    repetition_detection: Unsupported[dict[str, Any]] = None
    cache_salt: Unsupported[str] = None
    request_id: Unsupported[str] = None
    session_id: Unsupported[str] = None
    stream_interval: Unsupported[int] = 1
    return_token_ids: Unsupported[bool] = False
    return_tokens_as_token_ids: Unsupported[bool] = False
    return_token_offsets: Unsupported[bool] = False
    routed_experts_prompt_start: Unsupported[int] = None
    watermarking: Unsupported[dict[str, Any]] = None
    mm_payload: Unsupported[Any] = None
    kv_transfer_params: Unsupported[dict[str, Any]] = None
    ec_transfer_params: Unsupported[dict[str, Any]] = None
    vllm_xargs: Unsupported[dict[str, Any]] = None


class CompletionRequest(GenerationRequest, kw_only=True):
    """`POST /v1/completions`. `prompt` is a text or token ids, or a list of either."""

    prompt: str | list[str | int | list[int]]
    add_special_tokens: bool | None = True

    best_of: Unsupported[int] = 1
    logprobs: Unsupported[int] = None
    suffix: Unsupported[str] = None
    prompt_embeds: Unsupported[Any] = None


class ContentPart(Struct):
    """One part of a message. What other types carry is not looked at: only text is supported."""

    type: str
    text: str | None = None


class ChatMessage(Struct, kw_only=True, forbid_unknown_fields=True):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[ContentPart] | None = None
    name: str | None = None

    refusal: Unsupported[str] = None
    audio: Unsupported[Any] = None
    annotations: Unsupported[list[Any]] = []
    function_call: Unsupported[Any] = None
    tool_calls: Unsupported[list[Any]] = []
    reasoning: Unsupported[str] = None
    reasoning_content: Unsupported[str] = None


class ChatRequest(GenerationRequest, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    add_special_tokens: bool | None = False
    add_generation_prompt: bool | None = True
    continue_final_message: bool | None = False

    logprobs: Unsupported[bool] = False
    top_logprobs: Unsupported[int] = 0
    tools: Unsupported[list[Any]] = []
    tool_choice: Unsupported[Any] = "none"
    parallel_tool_calls: Unsupported[bool] = True
    functions: Unsupported[list[Any]] = []
    function_call: Unsupported[Any] = None
    modalities: Unsupported[list[str]] = msgspec.field(default_factory=lambda: ["text"])
    audio: Unsupported[Any] = None
    prediction: Unsupported[Any] = None
    reasoning_effort: Unsupported[str] = None
    include_reasoning: Unsupported[bool] = True
    verbosity: Unsupported[str] = None
    web_search_options: Unsupported[Any] = None
    moderation: Unsupported[Any] = None
    documents: Unsupported[list[Any]] = []
    chat_template: Unsupported[str] = None
    chat_template_kwargs: Unsupported[dict[str, Any]] = {}
    media_io_kwargs: Unsupported[dict[str, Any]] = {}
    mm_processor_kwargs: Unsupported[dict[str, Any]] = {}
    return_prompt_text: Unsupported[bool] = False


def refuse_unsupported(request: Struct, where: str = "") -> None:
    """Refuse every field that is known, not supported yet, and not neutral.

    Raises:
        RequestError: names the first such field.
    """
    for name, neutral in _neutral_values(type(request)):
        value = getattr(request, name)
        if value is not None and value != neutral:
            raise RequestError(f"{where}{name} is not supported yet; leave it out", f"{where}{name}")


def wants_usage(request: GenerationRequest) -> bool:
    """Whether the stream is to end with a chunk of the usage.

    Raises:
        RequestError: options for a stream without a stream.
    """
    options = request.stream_options
    if options is None:
        return False
    if not request.stream:
        raise RequestError("stream_options go with stream: true only", "stream_options")
    refuse_unsupported(options, "stream_options.")
    return options.include_usage is True


def sampling_params(request: GenerationRequest, max_tokens: int | None) -> SamplingParams:
    """The part of a request that is about sampling, checked; what it leaves out has its neutral value.

    Raises:
        RequestError: a value is out of range.
    """
    given = {name: value for name in _SAMPLING_FIELDS if (value := getattr(request, name)) is not None}
    stop = [request.stop] if isinstance(request.stop, str) else request.stop or []
    return SamplingParams(
        **given, max_tokens=max_tokens, stop=tuple(stop), stop_token_ids=tuple(request.stop_token_ids or ())
    )


def scheduling_params(request: GenerationRequest) -> SchedulingParams:
    """The part of a request that is about its place among the others, checked. The tenant is never the body's to name.

    Raises:
        RequestError: a value is out of range.
    """
    return SchedulingParams(
        priority=request.priority or 0,
        timeout=request.timeout,
        ttft_target=request.ttft_target,
        tpot_target=request.tpot_target,
    )


_SAMPLING_FIELDS = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
)


@functools.cache
def _neutral_values(kind: type[Struct]) -> tuple[tuple[str, Any], ...]:
    """Name and neutral value of each field that is marked `Unsupported`."""
    return tuple(
        (field.name, field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory())
        for field in msgspec.structs.fields(kind)
        if any(mark.extra == _UNSUPPORTED for mark in getattr(field.type, "__metadata__", ()) if isinstance(mark, Meta))
    )


class PromptTokensDetails(Struct):
    """How much of the prompt the prefix cache had."""

    cached_tokens: int


class Usage(Struct):
    """Tokens of all choices together; a prompt counts once, however many samples it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class CompletionChoice(Struct):
    """One text. In a stream `text` is what is new, and the last chunk has the finish reason."""

    index: int
    text: str
    logprobs: None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET


class Completion(Struct):
    """The answer of completions, and a chunk of its stream."""

    id: str
    object: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET


class AssistantMessage(Struct):
    """What the model said."""

    role: str
    content: str
    refusal: None = None


class ChatChoice(Struct):
    """One answer."""

    index: int
    message: AssistantMessage
    logprobs: None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class ChatCompletion(Struct):
    """The answer of chat completions."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class ChatDelta(Struct):
    """What is new: the role in a choice's first chunk, text in the others."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(Struct):
    """One answer's part of a chunk."""

    index: int
    delta: ChatDelta
    logprobs: None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET


class ChatChunk(Struct):
    """A chunk of chat completions' stream; the one with the usage has no choices."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET


class ModelCard(Struct):
    """One model of `/v1/models`, with vLLM's fields."""

    id: str
    created: int
    max_model_len: int
    root: str
    object: str = "model"
    owned_by: str = "pyllm"
    parent: str | None = None
    permission: list[Any] = []


class ModelList(Struct):
    """`GET /v1/models`."""

    data: list[ModelCard]
    object: str = "list"


class ErrorBody(Struct):
    """What went wrong. `param` is the field at fault, `code` a word for programs; either may be null."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(Struct):
    """The body of every answer that is not a success."""

    error: ErrorBody
