"""The tools of a request to the Responses API, and the choice among them, as a conversation has them.

The model is told of tools that the caller runs: functions, custom tools, `local_shell` and `apply_patch`. Tools of
other types run on a server, which this one does not do. Calls nothing.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from pyllm.errors import RequestError
from pyllm.frontend.conversation import InputFormat, NamedTool, Tool, ToolChoice
from pyllm.frontend.ignored_fields import Ignore
from pyllm.frontend.responses.protocol import (
    ApplyPatchCall,
    ApplyPatchTool,
    ChosenTools,
    CustomTool,
    FunctionTool,
    HostedCall,
    Item,
    LocalShellAction,
    LocalShellCall,
    LocalShellTool,
    ResponsesRequest,
    ShownTool,
    ToolParam,
    ToolReference,
)

_TEXT = {"type": "string"}
LOCAL_SHELL = Tool(
    name="local_shell",
    description="Runs a command on the user's machine and returns its output.",
    parameters={
        "type": "object",
        "properties": {
            "command": {"type": "array", "items": _TEXT, "description": "The program and its arguments."},
            "working_directory": _TEXT,
            "timeout_ms": {"type": "integer"},
        },
        "required": ["command"],
        "additionalProperties": False,
    },
)
APPLY_PATCH = Tool(
    name="apply_patch",
    description="Creates, updates or deletes a file of the user's. `diff` is a unified diff without file headers.",
    parameters={
        "type": "object",
        "properties": {
            "type": {"enum": ["create_file", "update_file", "delete_file"]},
            "path": _TEXT,
            "diff": _TEXT,
        },
        "required": ["type", "path"],
        "additionalProperties": False,
    },
)
_HOSTED = {tool.name: tool for tool in (LOCAL_SHELL, APPLY_PATCH)}
# Types whose tools have names of their own.
_NAMED = ("function", "custom")


def tools_of(request: ResponsesRequest, items: Sequence[Item], ignore: Ignore) -> list[ToolParam]:
    """The tools that the model is told of: those of the request, then those that items add.

    Raises:
        RequestError: a tool has no name, or the server is strict.
    """
    told = []
    given = [("tools", request.tools), *((f"input[{at}].tools", item.tools) for at, item in enumerate(items))]
    for where, tools in given:
        for index, tool in enumerate(tools or ()):
            if tool.type in _NAMED:
                if tool.name is None:
                    raise RequestError(f"{where}[{index}].name is missing", f"{where}[{index}].name")
                told.append(tool)
            elif tool.type in _HOSTED:
                told.append(tool)
            else:
                text = f"{where}[{index}]: tools of type {tool.type:.80} run on a server; leave it out"
                ignore(f"tools.{tool.type}", text)
    return told


def chosen(request: ResponsesRequest, told: list[ToolParam]) -> tuple[tuple[Tool, ...], ToolChoice]:
    """The tools that may be called, and the choice among them.

    Raises:
        RequestError: the choice is of a tool that the model is not told of.
    """
    choice = request.tool_choice
    if not isinstance(choice, ChosenTools):
        return tuple(map(_tool, told)), choice or "auto"
    if choice.type != "allowed_tools":
        return tuple(map(_tool, told)), NamedTool(_name(_find(told, choice.type, choice.name, "tool_choice")))
    if choice.mode is None or not choice.tools:
        raise RequestError("tool_choice of type allowed_tools needs mode and tools", "tool_choice")
    allowed = [_find(told, tool.type, tool.name, "tool_choice.tools") for tool in choice.tools if _runs_here(tool)]
    return tuple(_tool(tool) for tool in told if tool in allowed), choice.mode


def _input_format(tool: ToolParam) -> InputFormat:
    given = tool.format
    if given is None or given.type == "text":
        return InputFormat()
    if given.syntax is None or not given.definition:
        raise RequestError(f"tools: the format of {tool.name!r} needs syntax and definition", "tools")
    return InputFormat(given.syntax, given.definition)


def shown(told: list[ToolParam]) -> list[ShownTool]:
    """The tools as the response repeats them."""
    return list(map(_shown, told))


def hosted_names(told: list[ToolParam]) -> frozenset[str]:
    """The names of the told tools whose calls are items of their own type."""
    return frozenset(tool.type for tool in told if tool.type in _HOSTED)


def hosted_call(name: str, suffix: str, call_id: str) -> HostedCall:
    """A call of such a tool, as long as it has no arguments. `suffix` makes its id."""
    if name == LOCAL_SHELL.name:
        return LocalShellCall(f"lsc_{suffix}", "in_progress", call_id)
    return ApplyPatchCall(f"apc_{suffix}", "in_progress", call_id)


def take_arguments(call: HostedCall, arguments: str) -> None:
    """Fill a call. One that was cut off, or that the model broke, stays empty."""
    try:
        if isinstance(call, LocalShellCall):
            call.action = msgspec.json.decode(arguments, type=LocalShellAction)
        else:
            call.operation = msgspec.json.decode(arguments, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return


def _runs_here(tool: ToolReference) -> bool:
    return tool.type in _NAMED or tool.type in _HOSTED


def _find(told: list[ToolParam], kind: str, name: str | None, where: str) -> ToolParam:
    for tool in told:
        if tool.type == kind and (kind in _HOSTED or tool.name == name):
            return tool
    text = f"{where} asks for {name or kind!r:.80}, which is not among the tools that the model can call"
    raise RequestError(text, where)


def _name(tool: ToolParam) -> str:
    return tool.name if tool.name is not None and tool.type in _NAMED else tool.type


def _tool(tool: ToolParam) -> Tool:
    if tool.type in _HOSTED:
        return _HOSTED[tool.type]
    assert tool.name is not None
    if tool.type == "custom":
        return Tool(name=tool.name, description=tool.description, input_format=_input_format(tool))
    return Tool(
        name=tool.name,
        description=tool.description,
        parameters=tool.parameters,
        strict=tool.strict is True,
    )


def _shown(tool: ToolParam) -> ShownTool:
    match tool.type:
        case "function":
            return FunctionTool(_name(tool), tool.description, tool.parameters, tool.strict)
        case "custom":
            return CustomTool(_name(tool), tool.description, tool.format)
        case "local_shell":
            return LocalShellTool()
        case _:
            return ApplyPatchTool()
