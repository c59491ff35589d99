"""Anthropic's requests and answers as structs. Knows names and types, not behaviour.

A field marked `Unsupported` passes at its neutral value only (`frontend/http/unsupported.py`). A `Hint` has no effect
(`frontend/http/ignored_fields.py`).
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from pyllm.frontend.chat.history_parts import HistoryPart
from pyllm.frontend.http.ignored_fields import Hint, NoEffect
from pyllm.frontend.http.unsupported import Unsupported, unsupported_field
from pyllm.frontend.openai.common_fields import SampledRequest
from pyllm.parameters.arguments import declared

UseLastMessage = unsupported_field("a last message of the role assistant, which the answer goes on with")


class Block(HistoryPart, kw_only=True):
    """A block of a message, of any type; `chat_conversation.py` reads the fields of each type.

    `id`, `name` and `input` are a `tool_use`'s; `tool_use_id`, `content` and `is_error` a `tool_result`'s. The server
    does not read the `data` of a `redacted_thinking`, or a signature.
    """

    id: str | None = None
    name: str | None = None
    input: Any = None
    tool_use_id: str | None = None
    is_error: bool | None = False
    signature: str | None = ""

    data: NoEffect = None
    cache_control: NoEffect = None
    citations: Hint = msgspec.field(default_factory=list)
    caller: Hint = None
    toolset_name: Hint = None


class InputMessage(Struct, kw_only=True):
    """One turn of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block] | None


class ToolParam(Struct, kw_only=True):
    """A tool. The model sees those of type `custom`, which is the default; others run on a server."""

    name: str | None = None
    input_schema: dict[str, Any] | None = None
    description: str | None = None
    type: str | None = None
    strict: bool | None = False

    cache_control: NoEffect = None
    eager_input_streaming: NoEffect = None
    allowed_callers: Hint = []
    defer_loading: Hint = False
    input_examples: Hint = []


class ToolChoiceParam(Struct, kw_only=True):
    """The choice of tools; `name` goes with the type `tool`."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = False


class ThinkingParam(Struct, kw_only=True):
    """Whether the model thinks before it answers, and the most tokens of its thinking."""

    type: Literal["enabled", "disabled", "adaptive"]

    budget_tokens: int | None = None
    display: Hint = None


class OutputFormat(Struct, kw_only=True):
    """A JSON schema that the answer keeps to."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(Struct, kw_only=True):
    """The format of the answer, and the effort of its reasoning, which only some chat templates read."""

    effort: str | None = None
    format: OutputFormat | None = None


class Metadata(Struct, kw_only=True):
    """The user that a request is made for."""

    user_id: str | None = None


class PromptRequest(SampledRequest, kw_only=True):
    """A conversation, and the fields that change its prompt."""

    messages: Annotated[list[InputMessage], Meta(min_length=1)]
    system: str | list[Block] | None = None
    tools: list[ToolParam] | None = None
    tool_choice: ToolChoiceParam | None = None
    thinking: ThinkingParam | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None  # the older name of `output_config.format`
    chat_template_kwargs: dict[str, Any] | None = None  # vLLM's

    cache_control: NoEffect = None
    context_management: Hint = None
    mcp_servers: Hint = msgspec.field(default_factory=list)
    speed: Hint = "standard"


class CountTokensRequest(PromptRequest, kw_only=True):
    """`POST /v1/messages/count_tokens`. Sampling has no effect here."""


class MessagesRequest(PromptRequest, kw_only=True):
    """`POST /v1/messages`: the prompt, and how to answer it."""

    max_tokens: Annotated[int, declared("Most tokens of the answer.", ge=1)]
    stop_sequences: list[str] | None = None
    metadata: Metadata | None = None
    thread: Any = None

    # Fields of the other APIs here.
    n: Unsupported[int] = 1
    stop: Annotated[Any, unsupported_field("stop_sequences")] = None
    max_completion_tokens: Annotated[int | None, unsupported_field("max_tokens")] = None
    logprobs: Annotated[Any, unsupported_field(None, 0)] = False
    top_logprobs: Unsupported[int] = 0
    documents: Unsupported[list[Any]] = msgspec.field(default_factory=list)
    chat_template: Unsupported[str] = None
    add_generation_prompt: Annotated[bool | None, UseLastMessage] = True
    continue_final_message: Annotated[bool | None, UseLastMessage] = False
    parallel_tool_calls: Annotated[bool | None, unsupported_field("tool_choice.disable_parallel_tool_use")] = True
    reasoning_effort: Annotated[str | None, unsupported_field("output_config.effort")] = None
    include_reasoning: Unsupported[bool] = True
    response_format: Annotated[Any, unsupported_field("output_config.format")] = None
    structured_outputs: Annotated[Any, unsupported_field("output_config.format")] = None

    service_tier: NoEffect = None
    container: Hint = None
    diagnostics: Hint = None
    inference_geo: Hint = None


class TokenCount(Struct):
    """The answer of `POST /v1/messages/count_tokens`."""

    input_tokens: int


class MessageUsage(Struct):
    """Tokens of the prompt that were not in the prefix cache, those that were, and those of the answer.

    `finish_reason` is set where a deadline ended the answer, as Anthropic has no stop reason for it.
    """

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    finish_reason: Literal["deadline"] | UnsetType = UNSET


class TextContent(Struct, tag="text", tag_field="type"):
    """A text of the model."""

    text: str


class ThinkingContent(Struct, tag="thinking", tag_field="type"):
    """The model's reasoning. Nothing is signed, as nothing is hidden."""

    thinking: str
    signature: str = ""


class ToolUseContent(Struct, tag="tool_use", tag_field="type"):
    """A call of a tool. An input that was cut off, and so is no JSON object, is empty."""

    id: str
    name: str
    input: dict[str, Any]


Content = TextContent | ThinkingContent | ToolUseContent


class Message(Struct):
    """The answer of `POST /v1/messages`, and the beginning of its stream."""

    id: str
    model: str
    content: list[Content]
    usage: MessageUsage
    stop_reason: str | None = None
    stop_sequence: str | None = None
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"


class MessageStart(Struct, tag="message_start", tag_field="type"):
    """The first event of a stream."""

    message: Message


class Ping(Struct, tag="ping", tag_field="type"):
    """An event without a meaning."""


class BlockStart(Struct, tag="content_block_start", tag_field="type"):
    """A block begins, empty."""

    index: int
    content_block: Content


class TextDelta(Struct, tag="text_delta", tag_field="type"):
    """More of a text block."""

    text: str


class ThinkingDelta(Struct, tag="thinking_delta", tag_field="type"):
    """More of a thinking block."""

    thinking: str


class InputJsonDelta(Struct, tag="input_json_delta", tag_field="type"):
    """More of the JSON of a tool's input."""

    partial_json: str


class BlockDelta(Struct, tag="content_block_delta", tag_field="type"):
    """More of the block that is open."""

    index: int
    delta: TextDelta | ThinkingDelta | InputJsonDelta


class BlockStop(Struct, tag="content_block_stop", tag_field="type"):
    """A block is complete."""

    index: int


class Stop(Struct):
    """The end of an answer, and its reason."""

    stop_reason: str
    stop_sequence: str | None = None


class MessageDelta(Struct, tag="message_delta", tag_field="type"):
    """The end of the answer, and the usage of all of it."""

    delta: Stop
    usage: MessageUsage


class MessageStop(Struct, tag="message_stop", tag_field="type"):
    """The last event of a stream."""


Event = MessageStart | Ping | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop
