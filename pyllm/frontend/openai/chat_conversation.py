"""The body of a chat request as a conversation, without OpenAI's shapes. Renders nothing and checks no tools."""

from typing import Any

import msgspec

from pyllm.errors import RequestError
from pyllm.frontend.conversation import Conversation, NamedTool, Tool, ToolChoice
from pyllm.frontend.ignored_fields import Ignore
from pyllm.frontend.openai.protocol import ChatMessage, ChatRequest
from pyllm.frontend.openai.tool_protocol import AllowedTools, ChosenTools, FunctionDefinition, ToolDefinition
from pyllm.frontend.unsupported import refuse_unsupported


def conversation_of(request: ChatRequest, ignore: Ignore) -> Conversation:
    """What a request says.

    Raises:
        RequestError: a message or a choice of tools cannot be understood, or two fields exclude one another.
    """
    continues = request.continue_final_message is True
    opens = request.add_generation_prompt is not False
    if continues and opens:
        raise RequestError(
            "continue_final_message and add_generation_prompt exclude one another; set add_generation_prompt to false",
            "continue_final_message",
        )
    tools, choice = _tools(request, ignore)
    return Conversation(
        messages=[_plain(message, f"messages[{index}]") for index, message in enumerate(request.messages)],
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        reasoning_effort=request.reasoning_effort,
        documents=request.documents,
        template_variables=request.chat_template_kwargs or {},
        chat_template=request.chat_template,
        add_generation_prompt=opens,
        continue_final_message=continues,
        add_special_tokens=request.add_special_tokens is True,
        separate_reasoning=request.separate_reasoning is not False,
    )


def _tools(request: ChatRequest, ignore: Ignore) -> tuple[tuple[Tool, ...], ToolChoice]:
    definitions = _functions(request.tools or [], ignore)
    choice = request.tool_choice or ("auto" if definitions else "none")
    if not isinstance(choice, ChosenTools):
        return tuple(map(_tool, definitions)), choice
    if choice.type == "function" and choice.function is not None and choice.allowed_tools is None:
        return tuple(map(_tool, definitions)), NamedTool(choice.function.name)
    if choice.type == "allowed_tools" and choice.allowed_tools is not None and choice.function is None:
        return _allowed(definitions, choice.allowed_tools), choice.allowed_tools.mode
    raise RequestError(f"tool_choice of type {choice.type} needs {choice.type}, and nothing else", "tool_choice")


def _functions(tools: list[ToolDefinition], ignore: Ignore) -> list[FunctionDefinition]:
    """The functions among the tools; other types run on a server."""
    functions = []
    for index, tool in enumerate(tools):
        if tool.type != "function":
            ignore(f"tools.{tool.type}", f"tools[{index}]: tools of type {tool.type:.80} run on a server; leave it out")
        elif tool.function is None:
            raise RequestError(f"tools[{index}].function is missing", f"tools[{index}].function")
        else:
            functions.append(tool.function)
    return functions


def _allowed(definitions: list[FunctionDefinition], allowed: AllowedTools) -> tuple[Tool, ...]:
    """The tools that may be called; the model is told of no others."""
    names = {reference.function.name for reference in allowed.tools}
    unknown = names - {definition.name for definition in definitions}
    if unknown or not names:
        which = f"{min(unknown)!r}, which is not in tools" if unknown else "no tool"
        raise RequestError(f"tool_choice.allowed_tools has {which}", "tool_choice.allowed_tools")
    return tuple(_tool(definition) for definition in definitions if definition.name in names)


def _tool(function: FunctionDefinition) -> Tool:
    return Tool(
        name=function.name,
        description=function.description,
        parameters=function.parameters,
        strict=function.strict is True,
    )


def _plain(message: ChatMessage, where: str) -> dict[str, Any]:
    """A message as templates know it, with the text of its parts, one a line."""
    refuse_unsupported(message, f"{where}.")
    content = message.content or ""
    if not isinstance(content, str):
        for index, part in enumerate(content):
            field = f"{where}.content[{index}]"
            if part.type != "text" or part.text is None:
                raise RequestError(f"{field}: a part of type {part.type!r} is not supported; send text", field)
            refuse_unsupported(part, f"{field}.")
        content = "\n".join(part.text or "" for part in content)
    plain: dict[str, Any] = {"role": message.role, "content": content}
    if message.name is not None:
        plain["name"] = message.name
    plain |= _of_tool(message, where) if message.role == "tool" else _of_assistant(message, where)
    return plain


def _of_tool(message: ChatMessage, where: str) -> dict[str, Any]:
    _refuse(message, where, "tool_calls", "reasoning", "reasoning_content")
    if message.tool_call_id is None:
        field = f"{where}.tool_call_id"
        raise RequestError(f"{field} is missing: a message of role tool answers the call of this id", field)
    return {"tool_call_id": message.tool_call_id}


def _of_assistant(message: ChatMessage, where: str) -> dict[str, Any]:
    _refuse(message, where, "tool_call_id")
    if message.role != "assistant":
        _refuse(message, where, "tool_calls", "reasoning", "reasoning_content")
    plain: dict[str, Any] = {}
    reasoning = message.reasoning or message.reasoning_content
    if reasoning:
        plain |= {"reasoning": reasoning, "reasoning_content": reasoning}
    if message.tool_calls:
        plain["tool_calls"] = [
            {
                "id": call.id or "",
                "type": "function",
                "function": {
                    "name": call.function.name,
                    "arguments": _arguments(call.function.arguments, f"{where}.tool_calls[{index}].function.arguments"),
                },
            }
            for index, call in enumerate(message.tool_calls)
        ]
    return plain


def _refuse(message: ChatMessage, where: str, *names: str) -> None:
    for name in names:
        if getattr(message, name):
            raise RequestError(f"{where}.{name} is not for a message of role {message.role}", f"{where}.{name}")


def _arguments(text: str | None, field: str) -> dict[str, Any]:
    """The arguments as templates want them: an object."""
    try:
        # Strictly: what this lets through can be written to the prompt.
        arguments = msgspec.json.decode(text) if text else {}
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise RequestError(f"{field} is not JSON: {error}", field) from None
    if not isinstance(arguments, dict):
        raise RequestError(f"{field} must be a JSON object, got {text:.80}", field)
    return arguments
