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
)
from pyllm.frontend.chat.history_parts import TEXT_PARTS, part_text, result_text
from pyllm.frontend.http.ignored_fields import ignore_server_tool
from pyllm.frontend.http.unsupported import refuse_unsupported
from pyllm.frontend.openai.protocol import ChatMessage, ChatReasoning, ChatRequest
from pyllm.frontend.openai.tool_protocol import (
    AllowedTools,
    ChosenTools,
    CustomFormat,
    MessageToolCall,
    ToolDefinition,
)
from pyllm.frontend.text.json_schemas import Ignore
from pyllm.frontend.text.truncation import Truncation

# The types of parts of an assistant's message that are its reasoning.
_THOUGHTS = ("thinking", "reasoning")
# Fields, and the roles of the messages in which they have an effect.
_ROLES_OF = {
    **dict.fromkeys(("tool_calls", "function_call", "reasoning", "reasoning_content", "refusal"), ("assistant",)),
    **dict.fromkeys(("tool_call_id", "tool_name"), ("tool", "function")),
    "audio": ("assistant", "user", "system", "developer"),
}


def conversation_of(request: ChatRequest, ignore: Ignore, truncation: Truncation | None = None) -> Conversation:
    """The conversation of a request, whose prompt is shortened by the `truncation`.

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
        messages=[_plain(message, f"messages[{index}]", ignore) for index, message in enumerate(request.messages)],
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        reasoning_effort=_reasoning_effort(request),
        documents=request.documents,
        template_variables=request.chat_template_kwargs or {},
        chat_template=request.chat_template,
        add_generation_prompt=opens,
        continue_final_message=continues,
        add_special_tokens=request.add_special_tokens is True,
        separate_reasoning=request.separate_reasoning is not False,
        truncation=truncation,
    )


def _reasoning_effort(request: ChatRequest) -> str | None:
    """The effort of reasoning that a request asks for, in any of its fields.

    Raises:
        RequestError: two fields differ.
    """
    reasoning = request.reasoning or ChatReasoning()
    asked = {
        "think": "none" if request.think is False else None if request.think is True else request.think,
        "reasoning.effort": reasoning.effort or None,
        "reasoning.enabled": "none" if reasoning.enabled is False else None,
        "reasoning_effort": request.reasoning_effort,
    }
    given = {field: effort for field, effort in asked.items() if effort is not None}
    if len(set(given.values())) > 1:
        text = f"{' and '.join(given)} are one setting, and have two values; leave one of them out"
        raise RequestError(text, next(iter(given)))
    return next(iter(given.values()), None)


def _tools(request: ChatRequest, ignore: Ignore) -> tuple[tuple[Tool, ...], ToolChoice]:
    tools = tuple(_shown_tools(request.tools or (), ignore))
    choice = request.tool_choice or ("auto" if tools else "none")
    if choice == "any":
        choice = "required"
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
    """The tools that the model sees."""
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


def _plain(message: ChatMessage, where: str, ignore: Ignore) -> dict[str, Any]:
    """A message as templates know it, with the text of its parts, one a line."""
    for name, roles in _ROLES_OF.items():
        if message.role not in roles and getattr(message, name):
            ignore(f"messages.{name}", f"{where}.{name} is not allowed in a message of role {message.role}")
    match message.role:
        case "tool" | "function":
            return _of_tool(message)
        case "assistant":
            return _of_assistant(message, where)
    refuse_unsupported(message, f"{where}.")
    return _named(message, message.role, _users_text(message.content, f"{where}.content"))


def _named(message: ChatMessage, role: str, content: str) -> dict[str, Any]:
    name = message.tool_name or message.name if role == "tool" else message.name
    return {"role": role, "content": content} | ({} if name is None else {"name": name})


def _users_text(content: Any, where: str) -> str:
    """The text of a message of the user or the system. Parts that are not text are refused, as they would be lost."""
    if isinstance(content, dict):
        raise RequestError(f"{where} must be a text or a list of parts", where)
    if not isinstance(content, list):
        return content or ""
    for at, part in enumerate(content):
        text = part.refusal if part.type == "refusal" else part.text if part.type in TEXT_PARTS else None
        if text is None:
            field = f"{where}[{at}]"
            raise RequestError(f"{field}: a part of type {part.type!r:.80} is not supported; send text", field)
        refuse_unsupported(part, f"{where}[{at}].")
    return result_text(content)


def _of_tool(message: ChatMessage) -> dict[str, Any]:
    plain = _named(message, "tool", result_text(message.content))
    return plain | ({"tool_call_id": message.tool_call_id} if message.tool_call_id else {})


def _of_assistant(message: ChatMessage, where: str) -> dict[str, Any]:
    content = message.content
    parts = content if isinstance(content, list) else []
    thoughts = [part for part in parts if part.type in _THOUGHTS]
    said = [part for part in parts if part.type not in _THOUGHTS] if thoughts else content
    texts = [result_text(said), message.refusal or ""]
    if message.audio:
        texts.append(part_text({"type": "audio", "audio": message.audio}))
    plain = _named(message, "assistant", "\n\n".join(filter(None, texts)))
    reasoning = message.reasoning or message.reasoning_content or result_text(thoughts)
    if reasoning:
        plain |= {"reasoning": reasoning, "reasoning_content": reasoning}
    calls = message.tool_calls or []
    if message.function_call is not None and not calls:
        calls = [MessageToolCall(function=message.function_call)]
    if calls:
        plain["tool_calls"] = [
            {
                "id": call.id or "",
                "type": "function",
                "function": _called(call, f"{where}.tool_calls[{index}]"),
            }
            for index, call in enumerate(calls)
        ]
    return plain


def _called(call: MessageToolCall, where: str) -> dict[str, Any]:
    """The called function. To a template, a custom tool is a function of its input."""
    if call.custom is not None and (call.type == "custom" or call.function is None):
        return {"name": call.custom.name, "arguments": input_arguments(call.custom.input or "")}
    if call.function is None:
        raise RequestError(f"{where} needs function or custom", where)
    return {"name": call.function.name, "arguments": call_arguments(call.function.arguments)}
