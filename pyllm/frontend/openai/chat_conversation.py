"""Turns the body of a chat request into a conversation, without OpenAI's shapes. Checks no tools."""

from collections.abc import Iterable, Iterator
from typing import Any

from pyllm.errors import RequestError
from pyllm.frontend.chat.conversation import (
    Conversation,
    InputFormat,
    NamedTool,
    Tool,
    ToolChoice,
    call_arguments,
    input_arguments,
    left_out_text,
)
from pyllm.frontend.http.ignored_fields import Ignore, ignore_server_tool
from pyllm.frontend.http.unsupported import refuse_unsupported
from pyllm.frontend.openai.protocol import ChatMessage, ChatRequest, ContentPart
from pyllm.frontend.openai.tool_protocol import (
    AllowedTools,
    ChosenTools,
    CustomFormat,
    MessageToolCall,
    ToolDefinition,
)


def conversation_of(request: ChatRequest, ignore: Ignore) -> Conversation:
    """What a request says.

    Raises:
        RequestError: a message or a choice of tools cannot be understood, or two fields exclude one another.
    """
    last = request.messages[-1] if request.messages else None
    has_prefix = last is not None and last.role == "assistant" and last.prefix is True
    continues = request.continue_final_message is True or has_prefix
    opens = request.add_generation_prompt is not False and not has_prefix
    if continues and opens:
        raise RequestError(
            "continue_final_message and add_generation_prompt cannot be combined; set add_generation_prompt to false",
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
    tools = tuple(_shown_tools(request.tools or (), ignore))
    choice = request.tool_choice or ("auto" if tools else "none")
    if not isinstance(choice, ChosenTools):
        return tools, choice
    others = {"function": choice.function, "custom": choice.custom, "allowed_tools": choice.allowed_tools}
    chosen = others.pop(choice.type)
    if chosen is None or any(other is not None for other in others.values()):
        raise RequestError(f"tool_choice of type {choice.type} needs {choice.type}, and nothing else", "tool_choice")
    if isinstance(chosen, AllowedTools):
        return _allowed(tools, chosen), chosen.mode
    return tools, NamedTool(chosen.name)


def _allowed(tools: tuple[Tool, ...], allowed: AllowedTools) -> tuple[Tool, ...]:
    """The tools that may be called; the model sees no others."""
    references = [reference.function or reference.custom for reference in allowed.tools]
    names = {reference.name for reference in references if reference is not None}
    unknown = names - {tool.name for tool in tools}
    if unknown or not names:
        which = f"{min(unknown)!r}, which is not in tools" if unknown else "no tool"
        raise RequestError(f"tool_choice.allowed_tools has {which}", "tool_choice.allowed_tools")
    return tuple(tool for tool in tools if tool.name in names)


def _shown_tools(definitions: Iterable[ToolDefinition], ignore: Ignore) -> Iterator[Tool]:
    """Those that the model sees."""
    for index, definition in enumerate(definitions):
        kind, where = definition.type, f"tools[{index}]"
        if kind in ("function", "custom"):
            yield _tool(definition, where)
        else:
            ignore_server_tool(kind, where, ignore)


def _tool(definition: ToolDefinition, where: str) -> Tool:
    function, custom = definition.function, definition.custom
    if definition.type == "custom" and custom is not None and function is None:
        input_format = _input_format(custom.format, f"{where}.custom.format")
        return Tool(name=custom.name, description=custom.description, input_format=input_format)
    if definition.type != "function" or function is None or custom is not None:
        text = f"{where} of type {definition.type} needs {definition.type}, and nothing else"
        raise RequestError(text, where)
    return Tool(
        name=function.name,
        description=function.description,
        parameters=function.parameters,
        strict=function.strict is True,
    )


def _input_format(given: CustomFormat | None, where: str) -> InputFormat:
    if given is None or (given.type == "text" and given.grammar is None):
        return InputFormat()
    if given.type != "grammar" or given.grammar is None:
        raise RequestError(f"{where} needs a grammar if, and only if, its type is grammar", f"{where}.grammar")
    return InputFormat(given.grammar.syntax, given.grammar.definition)


def _plain(message: ChatMessage, where: str) -> dict[str, Any]:
    """A message as templates know it, with the text of its parts, one a line."""
    refuse_unsupported(message, f"{where}.")
    content = message.content or message.refusal or ""
    if not isinstance(content, str):
        of_tool = message.role == "tool"
        content = "\n".join(_text(part, f"{where}.content[{at}]", of_tool) for at, part in enumerate(content))
    plain: dict[str, Any] = {"role": message.role, "content": content}
    if message.name is not None:
        plain["name"] = message.name
    plain |= _of_tool(message, where) if message.role == "tool" else _of_assistant(message, where)
    return plain


def _text(part: ContentPart, where: str, of_tool: bool) -> str:
    """The text of a part. An image or a document in a tool's result is replaced by a note."""
    if of_tool and (note := left_out_text(part.type)):
        return note
    text = part.refusal if part.type == "refusal" else part.text if part.type == "text" else None
    if text is None:
        raise RequestError(f"{where}: a part of type {part.type!r} is not supported; send text", where)
    refuse_unsupported(part, f"{where}.")
    return text


def _of_tool(message: ChatMessage, where: str) -> dict[str, Any]:
    _refuse(message, where, "tool_calls", "reasoning", "reasoning_content")
    if message.tool_call_id is None:
        field = f"{where}.tool_call_id"
        raise RequestError(f"{field} is missing: it is the id of the call that a message of role tool answers", field)
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
                "function": _called(call, f"{where}.tool_calls[{index}]"),
            }
            for index, call in enumerate(message.tool_calls)
        ]
    return plain


def _called(call: MessageToolCall, where: str) -> dict[str, Any]:
    """What was called: to a template a custom tool is a function of its input."""
    if call.type == "custom" and call.custom is not None and call.function is None:
        return {"name": call.custom.name, "arguments": input_arguments(call.custom.input or "")}
    if call.type == "custom" or call.function is None or call.custom is not None:
        kind = call.type or "function"
        raise RequestError(f"{where} of type {kind} needs {kind}, and nothing else", where)
    return {"name": call.function.name, "arguments": call_arguments(call.function.arguments)}


def _refuse(message: ChatMessage, where: str, *names: str) -> None:
    for name in names:
        if getattr(message, name):
            raise RequestError(f"{where}.{name} is not allowed in a message of role {message.role}", f"{where}.{name}")
