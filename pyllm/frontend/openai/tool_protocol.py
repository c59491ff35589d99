"""OpenAI's tools as structs: what a chat may call, what it called, and what is new of a call. Knows no behaviour."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType


class FunctionDefinition(Struct, kw_only=True):
    """A function that the model may call. Without `parameters` it has none."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.\-]+$", max_length=128)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(Struct, kw_only=True):
    """A tool. Functions are the only kind that the model is told of; tools of other types run on a server."""

    type: str
    function: FunctionDefinition | None = None


class FunctionName(Struct, kw_only=True):
    """Which function is meant."""

    name: str


class ToolReference(Struct, kw_only=True):
    """Which tool is meant."""

    type: Literal["function"]
    function: FunctionName


class AllowedTools(Struct, kw_only=True):
    """Those of the tools that may be called, and whether one must be."""

    mode: Literal["auto", "required"]
    tools: list[ToolReference]


class ChosenTools(Struct, kw_only=True):
    """A choice of one function, or of some of the tools."""

    type: Literal["function", "allowed_tools"]
    function: FunctionName | None = None
    allowed_tools: AllowedTools | None = None


class CalledFunction(Struct, kw_only=True):
    """What a message's call was of. `arguments` are JSON."""

    name: str
    arguments: str | None = ""


class MessageToolCall(Struct, kw_only=True):
    """A call that the assistant made."""

    function: CalledFunction
    id: str | None = None
    type: Literal["function"] | None = "function"
    index: int | None = None


class FunctionCall(Struct):
    """The function that is called; `arguments` are JSON as the model wrote it."""

    name: str
    arguments: str


class ChatToolCall(Struct):
    """A call of a tool, with the name that its answer is to have."""

    id: str
    type: str
    function: FunctionCall


class FunctionCallDelta(Struct):
    """What is new of a call's function: its name, with no arguments yet, or more of these."""

    arguments: str
    name: str | UnsetType = UNSET


class ChatToolCallDelta(Struct):
    """What is new of a call: who it is, the first time, and then more of its arguments."""

    index: int
    function: FunctionCallDelta
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
