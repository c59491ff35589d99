"""The Responses API's requests and answers as structs. Knows names and types, not behaviour.

A field marked `Unsupported` passes at its neutral value only (`frontend/unsupported.py`).
"""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from pyllm.frontend.openai.protocol import ChatLogprob, EngineRequest
from pyllm.frontend.unsupported import Unsupported

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class Part(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of an item. Only text is supported; what other types carry is known for the sake of the refusal.

    `logprobs` are accepted without effect: callers send back what a response gave them.
    """

    type: str
    text: str | None = None
    logprobs: list[Any] | None = None

    annotations: Unsupported[list[Any]] = []
    refusal: Unsupported[str] = None
    detail: Unsupported[str] = None
    image_url: Unsupported[Any] = None
    input_audio: Unsupported[Any] = None
    file_id: Unsupported[str] = None
    file_data: Unsupported[str] = None
    file_url: Unsupported[str] = None
    filename: Unsupported[str] = None


class Item(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One item of a conversation, as callers send it: a message, unless its type says otherwise."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] | None = None
    id: str | None = None
    status: str | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None
    summary: list[Part] | None = None

    encrypted_content: Unsupported[str] = None
    phase: Unsupported[str] = None
    namespace: Unsupported[str] = None
    caller: Unsupported[Any] = None
    created_by: Unsupported[str] = None


class FunctionTool(Struct, kw_only=True, forbid_unknown_fields=True):
    """A function that the model may call. Tools that OpenAI runs itself are refused by their type."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionChoice(Struct, kw_only=True, forbid_unknown_fields=True):
    """The choice of one function that must be called."""

    type: Literal["function"]
    name: str


class TextFormat(Struct, kw_only=True, forbid_unknown_fields=True):
    """The form of the text. A schema is always kept to, so `strict` changes nothing."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class TextConfig(Struct, kw_only=True, forbid_unknown_fields=True):
    """What the text is to be like."""

    format: TextFormat | None = None
    verbosity: Unsupported[str] = "medium"


class Reasoning(Struct, kw_only=True, forbid_unknown_fields=True):
    """How much is to be thought, where the chat template looks at it."""

    effort: str | None = None
    summary: Unsupported[str] = None
    generate_summary: Unsupported[str] = None


class ResponseStreamOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    """What a stream carries besides its events: nothing."""

    include_obfuscation: Unsupported[bool] = False


class ResponsesRequest(EngineRequest, kw_only=True):
    """`POST /v1/responses`."""

    input: str | list[Item]
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: int | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | None = None
    parallel_tool_calls: bool | None = True
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    include: list[Literal["message.output_text.logprobs"]] | None = None
    top_logprobs: int | None = None
    background: bool | None = False
    chat_template_kwargs: dict[str, Any] | None = None

    truncation: Unsupported[str] = "disabled"
    stream_options: ResponseStreamOptions | None = None
    max_tool_calls: Unsupported[int] = None
    conversation: Unsupported[Any] = None
    prompt: Unsupported[Any] = None
    moderation: Unsupported[Any] = None
    context_management: Unsupported[Any] = None


class OutputText(Struct, tag="output_text", tag_field="type"):
    """Text of a message."""

    text: str = ""
    annotations: list[Any] = []
    logprobs: list[ChatLogprob] = []


class ReasoningText(Struct, tag="reasoning_text", tag_field="type"):
    """Text of what the model thought."""

    text: str = ""


class OutputMessage(Struct, tag="message", tag_field="type"):
    """What the model said."""

    id: str
    status: Status
    content: list[OutputText]
    role: Literal["assistant"] = "assistant"


class ReasoningItem(Struct, tag="reasoning", tag_field="type"):
    """What it thought before."""

    id: str
    status: Status
    content: list[ReasoningText]
    summary: list[Any] = []


class FunctionCall(Struct, tag="function_call", tag_field="type"):
    """A function that it calls."""

    id: str
    status: Status
    call_id: str
    name: str
    arguments: str = ""


class CustomToolCall(Struct, tag="custom_tool_call", tag_field="type"):
    """A custom tool that it calls."""

    id: str
    status: Status
    call_id: str
    name: str
    input: str = ""


OutputItem = OutputMessage | ReasoningItem | FunctionCall | CustomToolCall


class InputTokensDetails(Struct):
    """How much of the prompt the prefix cache had."""

    cached_tokens: int


class OutputTokensDetails(Struct):
    """How much of the output was reasoning."""

    reasoning_tokens: int


class ResponseUsage(Struct):
    """Tokens of one response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(Struct):
    """Why a response is incomplete."""

    reason: str


class ResponseError(Struct):
    """Why a response failed."""

    code: str
    message: str


class Response(Struct, kw_only=True):
    """A response, whole or on its way."""

    id: str
    created_at: int
    model: str
    status: Status
    object: Literal["response"] = "response"
    output: list[OutputItem] = []
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    usage: ResponseUsage | None = None
    completed_at: int | None = None
    background: bool = False
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, Any] = {}
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    reasoning: Reasoning | None = None
    service_tier: str | None = None
    store: bool = True
    temperature: float = 1.0
    text: TextConfig = msgspec.field(default_factory=lambda: TextConfig(format=TextFormat()))
    tool_choice: str | FunctionChoice = "auto"
    tools: list[FunctionTool] = []
    top_logprobs: int = 0
    top_p: float = 1.0
    truncation: str = "disabled"
    user: str | UnsetType | None = UNSET


class DeletedResponse(Struct):
    """The answer of a deletion."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class ItemList(Struct):
    """The items that a response is an answer to, page by page."""

    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


class ResponseRecord(Struct):
    """What is kept of a response: itself, and the conversation that it is an answer to, older answers included."""

    response: Response
    input: list[Item]
