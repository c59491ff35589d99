"""OpenAI's tools as structs: the tools that a chat may call, its calls, and the new parts of a call."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType


class FunctionDefinition(Struct, kw_only=True):
    """A function that the model may call. Without `parameters` it has none."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.\-]+$", max_length=128)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class GrammarDefinition(Struct, kw_only=True):
    """A grammar of a custom tool's input."""

    syntax: Literal["lark", "regex"]
    definition: Annotated[str, Meta(min_length=1)]


class CustomFormat(Struct, kw_only=True):
    """The format of a custom tool's input."""

    type: Literal["text", "grammar"]
    grammar: GrammarDefinition | None = None


class CustomDefinition(Struct, kw_only=True):
    """A tool whose input is a text: any text, unless it has a format."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.\-]+$", max_length=128)]
    description: str | None = None
    format: CustomFormat | None = None


class ToolDefinition(Struct, kw_only=True):
    """A tool, which has the field of its type. The model sees functions and custom tools only."""

    type: str
    function: FunctionDefinition | None = None
    custom: CustomDefinition | None = None


class ToolName(Struct, kw_only=True):
    """A reference to a tool by its name."""

    name: str


class ToolReference(Struct, kw_only=True):
    """A tool by its type and name."""

    type: str
    function: ToolName | None = None
    custom: ToolName | None = None


class AllowedTools(Struct, kw_only=True):
    """The tools that may be called, and whether one must be."""

    mode: Literal["auto", "required"]
    tools: list[ToolReference]


class ChosenTools(Struct, kw_only=True):
    """A choice of one tool, or of some of them."""

    type: Literal["function", "custom", "allowed_tools"]
    function: ToolName | None = None
    custom: ToolName | None = None
    allowed_tools: AllowedTools | None = None


class CalledFunction(Struct, kw_only=True):
    """The function that a call names. `arguments` are the model's text, mostly JSON, or an object as in Ollama."""

    name: str
    arguments: Any = ""


class CalledCustom(Struct, kw_only=True):
    """The custom tool that a call names, and its input."""

    name: str
    input: str | None = ""


class MessageToolCall(Struct, kw_only=True):
    """A call that the assistant made: of a function, or of a custom tool, whatever its `type` says."""

    function: CalledFunction | None = None
    custom: CalledCustom | None = None
    id: str | None = None
    type: str | None = "function"
    index: int | None = None


class FunctionCall(Struct):
    """The function that is called; `arguments` are JSON as the model wrote it."""

    name: str
    arguments: str


class CustomCall(Struct):
    """The custom tool that is called."""

    name: str
    input: str


class ChatToolCall(Struct):
    """A call of a tool, with the id that its result must name, and the field of its type."""

    id: str
    type: str
    function: FunctionCall | UnsetType = UNSET
    custom: CustomCall | UnsetType = UNSET


class FunctionCallDelta(Struct):
    """The new part of a call's function: its name, without arguments yet, or more of its arguments."""

    arguments: str
    name: str | UnsetType = UNSET


class CustomCallDelta(Struct):
    """The new part of a custom tool's call: its name, without input yet, or more of its input."""

    input: str
    name: str | UnsetType = UNSET


class ChatToolCallDelta(Struct):
    """The new part of a call: at first its id, type and name, then more of its arguments or input."""

    index: int
    function: FunctionCallDelta | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    custom: CustomCallDelta | UnsetType = UNSET
