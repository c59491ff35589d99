"""A conversation with tools, independent of the API, and the request that it becomes. Knows no API's shapes.

Only its errors name fields as OpenAI does.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from pyllm.errors import Field, RequestError
from pyllm.frontend.chat.history_parts import compact_json
from pyllm.frontend.chat.parsers.sample_parser import SampleParser
from pyllm.frontend.text.json_schemas import json_type
from pyllm.frontend.text.templates import Message
from pyllm.frontend.text.truncation import Truncation
from pyllm.parameters.sampling_params import SamplingParams

# The key for arguments that are no JSON object, as in Anthropic's documents of streamed tool input.
INVALID_JSON = "INVALID_JSON"
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
ANY_PARAMETERS: dict[str, Any] = {"type": "object"}
# The parameters of a custom tool in a template, which are also the arguments of its calls.
_INPUT: dict[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


class InputFormat(Struct, frozen=True):
    """The format of a custom tool's input: any text, a Lark grammar or a regex."""

    syntax: Literal["text", "lark", "regex"] = "text"
    definition: str = ""


class Tool(Struct, frozen=True, kw_only=True):
    """A function that the model may call. Without `parameters` it has none; `strict` calls follow their schema.

    With an `input_format` it is a custom tool: its calls have a text as input instead of arguments. The model sees a
    function with one parameter, `input`.
    """

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False
    input_format: InputFormat | None = None

    @property
    def schema(self) -> dict[str, Any]:
        """The schema of a call's arguments. A Lark grammar is not part of it."""
        if self.input_format is not None:
            return _INPUT
        return _NO_PARAMETERS if self.parameters is None else {**ANY_PARAMETERS, **self.parameters}

    @property
    def is_constrained(self) -> bool:
        """Whether an optional call must follow its schema or grammar."""
        return self.strict or (self.input_format is not None and self.input_format.syntax != "text")

    def for_template(self) -> dict[str, Any]:
        """The tool in the shape that templates expect."""
        description = self.description
        if self.input_format is not None:
            description = _described(description, self.input_format)
        described = {} if description is None else {"description": description}
        return {"type": "function", "function": {"name": self.name, **described, "parameters": self.schema}}


class NamedTool(Struct, frozen=True):
    """A tool choice that demands a call of this tool."""

    name: str


ToolChoice = Literal["none", "auto", "required"] | NamedTool


class Conversation(Struct, frozen=True, kw_only=True):
    """The messages so far, the tools that the model may call, and the settings of the template.

    Messages have the shape that templates expect: a `role`, a text `content`, and optionally `tool_calls`, whose
    arguments are objects, `tool_call_id`, `name`, `reasoning` and `reasoning_content`. Only the template reads
    `template_variables`; `chat_template` replaces the model's. `truncation` defines how a long prompt is shortened.
    Without `separate_reasoning` reasoning stays in the content.
    """

    messages: Sequence[Message]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    reasoning_effort: str | None = None
    documents: Sequence[Mapping[str, Any]] | None = None
    template_variables: Mapping[str, Any] = {}
    chat_template: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    separate_reasoning: bool = True
    truncation: Truncation | None = None

    @property
    def forces_call(self) -> bool:
        """Whether the choice of tools demands a call, which takes precedence over a format."""
        return bool(self.tools) and (self.tool_choice == "required" or isinstance(self.tool_choice, NamedTool))


def call_arguments(given: Any) -> dict[str, Any]:
    """The arguments of a call in the history as an object, for templates; given as a JSON text or an object.

    Text that is no JSON object is kept under the key of Anthropic's clients; empty arguments become an empty object.
    """
    if isinstance(given, dict):
        return given
    if given is None or given == "":
        return {}
    text = given if isinstance(given, str) else compact_json(given)
    try:
        # Strictly, so that the result can be written to the prompt.
        arguments = msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError):
        arguments = None
    return arguments if isinstance(arguments, dict) else {INVALID_JSON: text}


def with_call_ids(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages with an id for each call, and with its call's id for each result.

    A result without an id gets that of the first unanswered call before it, of the tool that it names, if any. Without
    such a call it gets none.
    """
    if all(map(_has_ids, messages)):
        return messages
    named: list[Message] = []
    calls_of: defaultdict[str | None, deque[tuple[int, str]]] = defaultdict(deque)  # by their tool, and all under None
    unanswered: dict[str, int] = {}
    num_calls = 0
    for message in messages:
        changes: Message = {}
        if message["role"] == "tool":
            call_id = message.get("tool_call_id") or ""
            if not call_id:
                calls = calls_of[message.get("name")]
                while calls and unanswered.get(calls[0][1]) != calls[0][0]:
                    calls.popleft()
                if calls:
                    _, call_id = calls.popleft()
                    changes = {"tool_call_id": call_id}
            unanswered.pop(call_id, None)
        elif made := message.get("tool_calls"):
            changes = {
                "tool_calls": [
                    call if call.get("id") else {**call, "id": f"call_{num_calls + at}"} for at, call in enumerate(made)
                ]
            }
            for call in changes["tool_calls"]:
                unanswered[call["id"]] = num_calls
                for name in (call["function"]["name"], None):
                    calls_of[name].append((num_calls, call["id"]))
                num_calls += 1
        named.append({**message, **changes} if changes else message)
    return named


def input_arguments(text: str) -> dict[str, Any]:
    """The arguments of a custom tool's call, in the shape that templates expect."""
    return {"input": text}


class Prepared(Struct, frozen=True):
    """The request to submit. `make_parser` makes a parser for each sample; without it all text is content.

    `adjusted` are the traits that the template lacks, for which the messages were put into another form.
    """

    prompts: Sequence[Sequence[int]]
    params: SamplingParams
    make_parser: Callable[[], SampleParser] | None = None
    adjusted: tuple[str, ...] = ()


def check_tools(conversation: Conversation) -> None:
    """Refuse tools with equal names or unusable parameters, and a choice of a tool that is not among them.

    Raises:
        RequestError: names the field.
    """
    names = set()
    for index, tool in enumerate(conversation.tools):
        if tool.name in names:
            raise RequestError(f"tools has {tool.name!r} more than once; names must differ", f"tools[{index}]")
        names.add(tool.name)
        if json_type(tool.schema.get("type")) != "object":
            text = f"tools: the parameters of {tool.name!r} must be a JSON schema of type object"
            raise RequestError(text, f"tools[{index}]")
    choice = conversation.tool_choice
    if isinstance(choice, NamedTool) and choice.name not in names:
        raise RequestError(f"tool_choice names {choice.name!r}, which is not in tools", "tool_choice")
    if choice == "required" and not names:
        raise RequestError((Field("tool_choice required"), " needs tools"), "tool_choice")


def _described(description: str | None, input_format: InputFormat) -> str | None:
    """The description, followed by the format of the input."""
    if input_format.syntax == "text":
        return description
    kind = "Lark grammar" if input_format.syntax == "lark" else "regular expression"
    rule = f"The input must match this {kind}:\n{input_format.definition}"
    return rule if description is None else f"{description}\n\n{rule}"


def _has_ids(message: Message) -> bool:
    if message["role"] == "tool":
        return bool(message.get("tool_call_id"))
    return all(call.get("id") for call in message.get("tool_calls") or ())
