"""The tools of a Responses request, and the choice among them, converted for a conversation.

The model sees the tools that the caller runs: functions, custom tools, `local_shell` and `apply_patch`. Tools of other
types run on a server; pyllm does not run them. Calls no tool.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from pyllm.errors import RequestError
from pyllm.frontend.chat.conversation import InputFormat, NamedTool, Tool, ToolChoice
from pyllm.frontend.http.ignored_fields import ignore_server_tool
from pyllm.frontend.responses.protocol import (
    ApplyPatchCall,
    ApplyPatchTool,
    BuiltInCall,
    ChosenTools,
    CustomTool,
    FunctionTool,
    Item,
    LocalShellAction,
    LocalShellCall,
    LocalShellTool,
    ResponsesRequest,
    ShownTool,
    ToolParam,
    ToolReference,
)
from pyllm.frontend.text.json_schemas import Ignore

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
_BUILT_IN = {tool.name: tool for tool in (LOCAL_SHELL, APPLY_PATCH)}
# Types whose tools have names of their own.
_NAMED = ("function", "custom")


def callable_tools(request: ResponsesRequest, items: Sequence[Item], ignore: Ignore) -> list[ToolParam]:
    """The tools that the caller runs: first the request's, then tools that items add.

    Raises:
        RequestError: a tool has no name, or the server is strict.
    """
    tools = []
    given = [("tools", request.tools), *((f"input[{at}].tools", item.tools) for at, item in enumerate(items))]
    for where, some in given:
        for index, tool in enumerate(some or ()):
            if tool.type not in _NAMED and tool.type not in _BUILT_IN:
                ignore_server_tool(tool.type or "", f"{where}[{index}]", ignore)
            elif tool.type in _NAMED and tool.name is None:
                raise RequestError(f"{where}[{index}].name is missing", f"{where}[{index}].name")
            else:
                tools.append(tool)
    return tools


def tools_and_choice(request: ResponsesRequest, tools: list[ToolParam]) -> tuple[tuple[Tool, ...], ToolChoice]:
    """The tools that the model may call, and the choice among them.

    Raises:
        RequestError: the chosen tool is not among them.
    """
    choice = request.tool_choice
    if not isinstance(choice, ChosenTools):
        return tuple(map(_tool, tools)), choice or "auto"
    keys = {_key(tool) for tool in tools}
    if choice.type != "allowed_tools":
        _check_known({_key(choice)}, keys, "tool_choice")
        return tuple(map(_tool, tools)), NamedTool(_name(choice))
    if choice.mode is None or not choice.tools:
        raise RequestError("tool_choice of type allowed_tools needs mode and tools", "tool_choice")
    allowed = {_key(tool) for tool in choice.tools if tool.type in _NAMED or tool.type in _BUILT_IN}
    _check_known(allowed, keys, "tool_choice.tools")
    return tuple(_tool(tool) for tool in tools if _key(tool) in allowed), choice.mode


def shown_tools(tools: list[ToolParam]) -> list[ShownTool]:
    """The tools as the response repeats them."""
    return list(map(_shown, tools))


def built_in_names(tools: list[ToolParam]) -> frozenset[str]:
    """The names of the tools whose calls have their own type of item."""
    return frozenset(tool.type for tool in tools if tool.type in _BUILT_IN)


def built_in_call(name: str, suffix: str, call_id: str) -> BuiltInCall:
    """An open call without arguments yet; `suffix` ends its id."""
    if name == LOCAL_SHELL.name:
        return LocalShellCall(f"lsc_{suffix}", "in_progress", call_id)
    return ApplyPatchCall(f"apc_{suffix}", "in_progress", call_id)


def fill_call(call: BuiltInCall, arguments: str) -> None:
    """Give a call its arguments. A call that was cut off, or that the model broke, stays empty."""
    try:
        if isinstance(call, LocalShellCall):
            call.action = msgspec.json.decode(arguments, type=LocalShellAction)
        else:
            call.operation = msgspec.json.decode(arguments, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return


def _name(tool: ToolParam | ToolReference | ChosenTools) -> str:
    return tool.name or "" if tool.type in _NAMED else tool.type


def _key(tool: ToolParam | ToolReference | ChosenTools) -> tuple[str, str]:
    return tool.type, _name(tool)


def _check_known(wanted: set[tuple[str, str]], keys: set[tuple[str, str]], where: str) -> None:
    if unknown := wanted - keys:
        _, name = min(unknown)
        raise RequestError(f"{where} asks for {name!r:.80}, which is not one of the tools that can be called", where)


def _tool(tool: ToolParam) -> Tool:
    if tool.type in _BUILT_IN:
        return _BUILT_IN[tool.type]
    assert tool.name is not None
    if tool.type == "custom":
        return Tool(name=tool.name, description=tool.description, input_format=_input_format(tool))
    return Tool(
        name=tool.name,
        description=tool.description,
        parameters=tool.parameters,
        strict=tool.strict is True,
    )


def _input_format(tool: ToolParam) -> InputFormat:
    given = tool.format
    if given is None or given.type == "text":
        return InputFormat()
    if given.syntax is None or not given.definition:
        raise RequestError(f"tools: the format of {tool.name!r} needs syntax and definition", "tools")
    return InputFormat(given.syntax, given.definition)


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
