"""The Responses API's requests and answers as structs. Knows names and types, not behaviour.

A field marked `Unsupported` passes at its neutral value only (`frontend/http/unsupported.py`), a `Hint` has no effect
(`frontend/http/ignored_fields.py`).
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from pyllm.frontend.chat.history_parts import HistoryPart
from pyllm.frontend.http.ignored_fields import Hint, NoEffect
from pyllm.frontend.http.unsupported import Unsupported, unsupported_field
from pyllm.frontend.openai.common_fields import EngineRequest
from pyllm.frontend.openai.protocol import ChatLogprob, TopLogprobs
from pyllm.parameters.sampling_params import MaxTokens

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class Part(HistoryPart, kw_only=True):
    """A part of an item. The parts of a user's message must be text."""

    logprobs: NoEffect = msgspec.field(default_factory=list)
    annotations: NoEffect = msgspec.field(default_factory=list)


class Item(Struct, kw_only=True, omit_defaults=True):
    """One item of a conversation, as callers send it: a message, unless its type says otherwise.

    `action` is a local shell call's, `operation` an apply_patch call's. A tool's `output` may be any JSON.
    """

    type: str | None = None
    id: str | None = None
    status: str | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: Any = None
    input: str | None = None
    action: dict[str, Any] | None = None
    operation: dict[str, Any] | None = None
    output: Any = None
    summary: str | list[Part] | None = None
    encrypted_content: str | None = None
    tools: "list[ListedTool] | None" = None

    phase: Hint = None
    namespace: Hint = None
    caller: Hint = None
    created_by: Hint = None


class CustomFormat(Struct, kw_only=True):
    """The format of a custom tool's input: any text, or text that a grammar accepts."""

    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: str | None = None


class ToolParam(Struct, kw_only=True):
    """A tool of any type. The model sees those that the caller runs (`responses/tools.py`)."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: CustomFormat | None = None


class ListedTool(ToolParam, kw_only=True):
    """A tool in an item. Tools of an `mcp_list_tools` item have no type."""

    type: str | None = None  # type: ignore[assignment]  # The field is never written.


class ToolReference(Struct, kw_only=True):
    """A reference to a tool: its type, and its name if the type has names."""

    type: str
    name: str | None = None


class ChosenTools(Struct, kw_only=True):
    """The choice of one tool that must be called, or of several that may be called, with a `mode`."""

    type: str
    name: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[ToolReference] | None = None


class TextFormat(Struct, kw_only=True):
    """The format of the text. The text always follows a schema, so `strict` changes nothing."""

    type: Literal["text", "json_object", "json_schema"] | None = "text"
    name: str | None = None
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class TextConfig(Struct, kw_only=True):
    """Settings of the text."""

    format: TextFormat | None = None
    verbosity: Hint = "medium"


class Reasoning(Struct, kw_only=True):
    """The effort of reasoning, where the chat template reads it."""

    effort: str | None = None

    summary: Hint = None
    generate_summary: Hint = None
    context: Hint = None


class ResponseStreamOptions(Struct, kw_only=True):
    """Options of a stream, none of which has an effect."""

    include_obfuscation: Hint = False


class ResponsesRequest(EngineRequest, kw_only=True):
    """`POST /v1/responses`."""

    input: str | list[Item]
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: MaxTokens | None = None
    tools: list[ToolParam] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTools | None = None
    parallel_tool_calls: bool | None = True
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    include: list[str] | None = None
    top_logprobs: TopLogprobs | None = None
    background: bool | None = False
    chat_template_kwargs: dict[str, Any] | None = None
    store: bool | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None

    truncation: Unsupported[str] = "disabled"
    include_reasoning: Unsupported[bool] = True
    stream_options: ResponseStreamOptions | None = None
    max_tool_calls: Hint = None
    prompt_cache_options: Hint = None
    conversation: Unsupported[Any] = None
    prompt: Unsupported[Any] = None
    moderation: Unsupported[Any] = None

    # Fields of chat completions.
    n: Unsupported[int] = 1
    max_tokens: Annotated[int | None, unsupported_field("max_output_tokens")] = None
    max_completion_tokens: Annotated[int | None, unsupported_field("max_output_tokens")] = None
    response_format: Annotated[Any, unsupported_field("text.format")] = None
    logprobs: Annotated[Any, unsupported_field("include")] = False
    messages: Annotated[Any, unsupported_field("input", [])] = None
    chat_template: Unsupported[str] = None
    add_generation_prompt: Unsupported[bool] = True
    continue_final_message: Unsupported[bool] = False
    context_management: Hint = None


class FunctionTool(Struct, tag="function", tag_field="type"):
    """A function, as a response repeats it."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class CustomTool(Struct, tag="custom", tag_field="type"):
    """A tool whose input is a text."""

    name: str
    description: str | None = None
    format: CustomFormat | None = None


class LocalShellTool(Struct, tag="local_shell", tag_field="type"):
    """A shell on the caller's machine."""


class ApplyPatchTool(Struct, tag="apply_patch", tag_field="type"):
    """Changes of files on the caller's machine."""


ShownTool = FunctionTool | CustomTool | LocalShellTool | ApplyPatchTool


class OutputText(Struct, tag="output_text", tag_field="type"):
    """Text of a message."""

    text: str = ""
    annotations: list[Any] = []
    logprobs: list[ChatLogprob] = []


class ReasoningText(Struct, tag="reasoning_text", tag_field="type"):
    """Text of the model's reasoning."""

    text: str = ""


class OutputMessage(Struct, tag="message", tag_field="type"):
    """A message of the model."""

    id: str
    status: Status
    content: list[OutputText]
    role: Literal["assistant"] = "assistant"


class ReasoningItem(Struct, tag="reasoning", tag_field="type"):
    """The model's reasoning before its answer."""

    id: str
    status: Status
    content: list[ReasoningText]
    summary: list[Any] = []
    encrypted_content: str | UnsetType = UNSET


class FunctionCall(Struct, tag="function_call", tag_field="type"):
    """A call of a function."""

    id: str
    status: Status
    call_id: str
    name: str
    arguments: str = ""


class CustomToolCall(Struct, tag="custom_tool_call", tag_field="type"):
    """A call of a custom tool."""

    id: str
    status: Status
    call_id: str
    name: str
    input: str = ""


class LocalShellAction(Struct):
    """A command, and where it is to run."""

    command: list[str] = []
    env: dict[str, str] = {}
    working_directory: str | None = None
    timeout_ms: int | None = None
    user: str | None = None
    type: Literal["exec"] = "exec"


class LocalShellCall(Struct, tag="local_shell_call", tag_field="type"):
    """A command that the caller is to run."""

    id: str
    status: Status
    call_id: str
    action: LocalShellAction = msgspec.field(default_factory=LocalShellAction)


class ApplyPatchCall(Struct, tag="apply_patch_call", tag_field="type"):
    """A change of a file that the caller is to make: `type`, `path` and `diff`."""

    id: str
    status: Status
    call_id: str
    operation: dict[str, Any] = {}


BuiltInCall = LocalShellCall | ApplyPatchCall
OutputItem = OutputMessage | ReasoningItem | FunctionCall | CustomToolCall | BuiltInCall


class InputTokensDetails(Struct):
    """Tokens of the prompt that were in the prefix cache, and tokens that were added to it."""

    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(Struct):
    """Tokens of the output that were reasoning."""

    reasoning_tokens: int


class ResponseUsage(Struct):
    """Tokens of one response. `finish_reason` is set where a deadline ended it."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int
    finish_reason: Literal["deadline"] | UnsetType = UNSET


class IncompleteDetails(Struct):
    """The reason why a response is incomplete."""

    reason: str


class ResponseError(Struct):
    """The reason why a response failed."""

    code: str
    message: str


class Response(Struct, kw_only=True):
    """A response, complete or still in progress."""

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
    tool_choice: str | ChosenTools = "auto"
    tools: list[ShownTool] = []
    top_logprobs: int = 0
    top_p: float = 1.0
    truncation: str = "disabled"
    user: str | UnsetType | None = UNSET


class DeletedResponse(Struct):
    """The answer of a deletion."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class InputTokens(Struct):
    """The number of tokens that the prompt of a request would have."""

    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


class ItemList(Struct):
    """One page of the items that a response answers."""

    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


class ResponseRecord(Struct):
    """A stored response, and the conversation that it answers, earlier answers included."""

    response: Response
    input: list[Item]
