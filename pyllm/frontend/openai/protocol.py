"""OpenAI's requests and responses as structs, with vLLM's additions. Knows names and types, not behaviour.

A field marked `Unsupported` would change the answer: it passes at its neutral value, which is its default here, and is
refused by name otherwise (`frontend/http/unsupported.py`). A `Hint` has no effect, as has a field that no struct knows:
both are accepted and named in a response header (`frontend/http/ignored_fields.py`).
"""

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from pyllm.client.logprobs import Logprob
from pyllm.frontend.chat.history_parts import HistoryPart
from pyllm.frontend.http.ignored_fields import Hint
from pyllm.frontend.http.unsupported import Unsupported, unsupported_field
from pyllm.frontend.openai.common_fields import EngineRequest
from pyllm.frontend.openai.tool_protocol import (
    CalledFunction,
    ChatToolCall,
    ChatToolCallDelta,
    ChosenTools,
    MessageToolCall,
    ToolDefinition,
)
from pyllm.frontend.requests.generation import TokenCounts
from pyllm.parameters.arguments import declared
from pyllm.parameters.sampling_params import (
    LengthPenalty,
    Logprobs,
    LogprobTokenIds,
    MaxTokens,
    N,
    PromptLogprobs,
    TruncatePromptTokens,
)

T = TypeVar("T")
UseTools = Annotated[T | None, unsupported_field("tools")]
UseToolChoice = Annotated[T | None, unsupported_field("tool_choice")]
TopLogprobs = Annotated[
    int,
    declared("So many of the likeliest tokens for each, with logprobs; -1: all.", "0 or more, or -1 for all", ge=-1),
]

MAX_PROMPTS = 1024


class StreamOptions(Struct, kw_only=True):
    """The parts of a stream besides the text."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False
    include_obfuscation: Hint = False


class JsonSchemaFormat(Struct, kw_only=True):
    """A JSON schema with a name. The answer always follows it, so `strict` changes nothing."""

    schema: dict[str, Any]
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Struct, kw_only=True):
    """OpenAI's way to ask for JSON. llama.cpp, Together and Fireworks have the `schema` beside the type json_object."""

    type: Literal["text", "json_object", "json_schema"] | None = "text"
    json_schema: JsonSchemaFormat | None = None
    schema: dict[str, Any] | None = None


class GenerationRequest(EngineRequest, kw_only=True):
    """The fields that completions and chat share."""

    n: N | None = None
    max_tokens: MaxTokens | None = None
    prompt_logprobs: PromptLogprobs | None = None
    logprob_token_ids: LogprobTokenIds | None = None
    response_format: ResponseFormat | None = None
    format: Literal["", "json"] | dict[str, Any] | None = None  # Ollama's
    use_beam_search: bool | None = None
    length_penalty: LengthPenalty | None = None
    stream_options: StreamOptions | None = None
    truncate_prompt_tokens: TruncatePromptTokens | None = None
    truncation_side: Literal["left", "right"] | None = None
    return_token_ids: bool | None = False
    return_tokens_as_token_ids: bool | None = False

    guided_json: Any = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    separate_reasoning: bool | None = True


class CompletionRequest(GenerationRequest, kw_only=True):
    """`POST /v1/completions`. `prompt` is a text or token ids, or a list of either.

    With a `suffix` the model fills the gap between the prompt and it.
    """

    prompt: str | list[str | int | list[int]]
    add_special_tokens: bool | None = True
    logprobs: Logprobs | None = None
    echo: bool | None = False
    suffix: str | None = None

    # Fields of chat completions.
    tools: Unsupported[list[Any]] = msgspec.field(default_factory=list)
    messages: Annotated[Any, unsupported_field("prompt", [])] = None
    chat_template: Unsupported[str] = None
    max_completion_tokens: Annotated[int | None, unsupported_field("max_tokens")] = None
    top_logprobs: Annotated[int | None, unsupported_field("logprobs")] = 0


class ContentPart(HistoryPart, kw_only=True):
    """One part of a message. A user's part must be text; the assistant's and tools' may have any type."""

    cache_control: Hint = None
    image_url: Unsupported[Any] = None
    input_audio: Unsupported[Any] = None
    audio_url: Unsupported[Any] = None
    video_url: Unsupported[Any] = None
    file: Unsupported[Any] = None


class ChatMessage(Struct, kw_only=True):
    """One message of a conversation. `reasoning_content` is the older name of `reasoning`.

    The answer continues the last message if that is the assistant's and has `prefix`, as Mistral and DeepSeek call it.
    The role `function` and `function_call` are older forms of a tool's result and of a call; `tool_name` is Ollama's.
    """

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | dict[str, Any] | None = None
    name: str | None = None
    tool_calls: list[MessageToolCall] | None = None
    function_call: CalledFunction | None = None
    tool_call_id: str | None = None
    tool_name: str | None = None
    prefix: bool | None = False
    reasoning: str | None = None
    reasoning_content: str | None = None

    refusal: str | None = None
    audio: Unsupported[Any] = None
    annotations: Hint = []


class ChatReasoning(Struct, kw_only=True):
    """OpenRouter's and SGLang's place for `reasoning_effort`, and for the opposite of `include_reasoning`."""

    effort: str | None = None
    enabled: bool | None = True
    exclude: bool | None = False
    max_tokens: Hint = None


class ChatRequest(GenerationRequest, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: list[ChatMessage]
    max_completion_tokens: MaxTokens | None = None
    add_special_tokens: bool | None = False
    add_generation_prompt: bool | None = True
    continue_final_message: bool | None = False
    logprobs: bool | None = False
    top_logprobs: TopLogprobs | None = None
    tools: list[ToolDefinition] | None = None
    tool_choice: Literal["none", "auto", "required", "any"] | ChosenTools | None = None  # Mistral's any is required
    parallel_tool_calls: bool | None = True
    reasoning_effort: str | None = None
    include_reasoning: bool | None = True
    reasoning: ChatReasoning | None = None
    think: bool | str | None = True  # Ollama's
    documents: list[dict[str, Any]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    functions: UseTools[list[Any]] = msgspec.field(default_factory=list)
    function_call: UseToolChoice[Any] = "none"
    modalities: Unsupported[list[str]] = msgspec.field(default_factory=lambda: ["text"])
    audio: Unsupported[Any] = None
    prediction: Hint = None
    verbosity: Hint = "medium"
    web_search_options: Hint = None
    moderation: Unsupported[Any] = None


class PromptTokensDetails(Struct):
    """The prompt's tokens that the prefix cache had."""

    cached_tokens: int


class CompletionTokensDetails(Struct):
    """The answer's tokens that were reasoning."""

    reasoning_tokens: int


class Usage(Struct):
    """Tokens of all choices together; a prompt counts once, however many samples it has.

    `finish_reason` is set where a deadline ended a choice, whose own finish reason is `length`.
    """

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET
    finish_reason: Literal["deadline"] | UnsetType = UNSET

    @classmethod
    def of(cls, counts: TokenCounts, reasoning_tokens: int | None = None) -> "Usage":
        """The counts in OpenAI's shape; without `reasoning_tokens` the answer's details are left out."""
        total = counts.prompt + counts.completion
        details = UNSET if reasoning_tokens is None else CompletionTokensDetails(reasoning_tokens)
        expired: Literal["deadline"] | UnsetType = "deadline" if counts.is_expired else UNSET
        return cls(counts.prompt, counts.completion, total, PromptTokensDetails(counts.cached), details, expired)


class CompletionLogprobs(Struct):
    """Lists with one entry per token. `top_logprobs` has the token itself as well as the likeliest ones."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(Struct):
    """One text. In a stream `text` is the new text, and the last chunk has the finish reason.

    Fields that were not asked for are null in an answer, as in vLLM, and absent from a chunk.
    """

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    prompt_logprobs: list[dict[int, Logprob] | None] | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType | None = UNSET


class Completion(Struct):
    """The answer of completions, and a chunk of its stream."""

    id: str
    object: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
    system_fingerprint: str | None = None


class AssistantMessage(Struct):
    """The model's answer. `content` is null where it only called tools, or did not finish its reasoning.

    `reasoning` is null where there is none, as in vLLM, and so are OpenAI's fields that no model here fills.
    """

    role: str
    content: str | None
    refusal: None = None
    annotations: None = None
    audio: None = None
    function_call: None = None
    reasoning: str | None = None
    tool_calls: list[ChatToolCall] | UnsetType = UNSET


class ChatTopLogprob(Struct):
    """A likely token; `token` is the text of `bytes`, which need not be whole characters."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(Struct):
    """A token of an answer, and the likeliest ones in its place."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[ChatTopLogprob]


class ChatLogprobs(Struct):
    """One entry per token."""

    content: list[ChatLogprob]
    refusal: None = None


class ChatChoice(Struct):
    """One answer."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None


class ChatCompletion(Struct):
    """The answer of chat completions. Fields that were not asked for are null, as in vLLM."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str | None = None
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    prompt_token_ids: list[int] | None = None


class ChatDelta(Struct):
    """The new part of an answer: the role in a choice's first chunk; text, reasoning or a call in the others."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ChatToolCallDelta] | UnsetType = UNSET


class ChatChunkChoice(Struct):
    """One answer's part of a chunk."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(Struct):
    """A chunk of chat completions' stream; the one with the usage has no choices."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    system_fingerprint: str | None = None
    prompt_token_ids: list[int] | UnsetType = UNSET


class ModelCapabilities(Struct):
    """The abilities of a model, in Mistral's words."""

    completion_chat: bool
    function_calling: bool
    completion_fim: bool
    fine_tuning: bool = False
    vision: bool = False


class ModelCard(Struct):
    """One model of `/v1/models`, with vLLM's fields, two of ours, and `type` and `capabilities`, which Mistral's has.

    `model_impl` is the implementation: native or transformers. With `batch_invariant` a token does not depend on the
    rest of its batch, so that a stream that survives a crash has the same tokens as without the crash.
    """

    id: str
    created: int
    max_model_len: int
    root: str
    model_impl: str
    batch_invariant: bool
    capabilities: ModelCapabilities
    type: str = "base"
    object: str = "model"
    owned_by: str = "pyllm"
    parent: str | None = None
    permission: list[Any] = []


class ModelList(Struct):
    """`GET /v1/models`."""

    data: list[ModelCard]
    object: str = "list"


class ErrorBody(Struct):
    """A failure. `param` is the field at fault, `code` a word for programs; either may be null."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(Struct):
    """The body of every answer that is not a success."""

    error: ErrorBody
