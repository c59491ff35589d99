"""Anthropic's messages, tools and choices as the conversation that every API comes to."""

from collections.abc import Iterator
from typing import Any

from pyllm.errors import RequestError
from pyllm.frontend.anthropic.protocol import (
    CountTokensRequest,
    InputMessage,
    TextBlock,
    ThinkingBlock,
    ThinkingParam,
    ToolChoiceParam,
    ToolResultBlock,
    ToolUseBlock,
)
from pyllm.frontend.conversation import Conversation, NamedTool, Tool, ToolChoice
from pyllm.frontend.conversations import Conversations
from pyllm.frontend.unsupported import refuse_unsupported

_CHOICES: dict[str, ToolChoice] = {"auto": "auto", "any": "required", "none": "none"}


def conversation_of(request: CountTokensRequest) -> Conversation:
    """The conversation of a request. A last message of the assistant's is what the answer goes on with.

    Raises:
        RequestError: a field is not honoured, or a block is not for this role.
    """
    messages: list[dict[str, Any]] = []
    if request.system:
        messages.append({"role": "system", "content": _text(request.system, "system")})
    for index, message in enumerate(request.messages):
        messages += _plain(message, f"messages.{index}")
    continues = bool(messages) and messages[-1]["role"] == "assistant"
    if continues and "tool_calls" in messages[-1]:
        raise RequestError("the last message calls a tool; send its tool_result after it", "messages")
    choice = request.tool_choice or ToolChoiceParam(type="auto")
    effort = None if request.output_config is None else request.output_config.effort
    return Conversation(
        messages=messages,
        tools=tuple(_tools(request)),
        tool_choice=_tool_choice(choice),
        parallel_tool_calls=not choice.disable_parallel_tool_use,
        reasoning_effort=effort,
        template_variables={} if request.thinking is None else {"enable_thinking": request.thinking.type != "disabled"},
        add_generation_prompt=not continues,
        continue_final_message=continues,
    )


def check_thinking(thinking: ThinkingParam | None, max_tokens: int, conversations: Conversations) -> None:
    """Refuse thinking that cannot be told from the answer or turned off, and a budget that would have to be kept.

    Raises:
        RequestError: names the field.
    """
    if thinking is None:
        return
    refuse_unsupported(thinking, "thinking.")
    if thinking.type == "disabled" and conversations.has_reasoning and not conversations.reads("enable_thinking"):
        raise RequestError("thinking cannot be disabled: the model's chat template has no switch for it", "thinking")
    if thinking.type == "enabled" and not conversations.has_reasoning:
        text = "thinking cannot be enabled: this server tells no thinking from answers (--reasoning-parser)"
        raise RequestError(text, "thinking")
    budget = thinking.budget_tokens
    if budget is not None and budget < max_tokens:
        text = f"thinking.budget_tokens: a budget of {budget} tokens cannot be kept; leave it out or send type adaptive"
        raise RequestError(text, "thinking.budget_tokens")


def _plain(message: InputMessage, where: str) -> Iterator[dict[str, Any]]:
    """One message as templates know it; results of tools are messages of their own."""
    if isinstance(message.content, str):
        yield {"role": message.role, "content": message.content}
        return
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for index, block in enumerate(message.content):
        place = f"{where}.content.{index}"
        refuse_unsupported(block, f"{place}.")
        match block:
            case TextBlock():
                texts.append(block.text)
            case ToolResultBlock() if message.role == "user":
                if texts:
                    yield {"role": "user", "content": "\n".join(texts)}
                    texts = []
                yield _tool_message(block, place)
            case ThinkingBlock() if message.role == "assistant":
                thoughts.append(block.thinking)
            case ToolUseBlock() if message.role == "assistant":
                function = {"name": block.name, "arguments": block.input}
                calls.append({"id": block.id, "type": "function", "function": function})
            case _:
                kind = type(block).__struct_config__.tag
                raise RequestError(f"{place}: a block of type {kind} is not for the role {message.role}", place)
    if message.role == "assistant":
        plain: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
        if calls:
            plain["tool_calls"] = calls
        if thoughts:
            plain["reasoning"] = plain["reasoning_content"] = "".join(thoughts)
        yield plain
    elif texts:
        yield {"role": "user", "content": "\n".join(texts)}


def _tool_message(block: ToolResultBlock, where: str) -> dict[str, Any]:
    """Templates have no place for the mark of an error, so the text has it."""
    text = _text(block.content or "", f"{where}.content")
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": f"Error: {text}" if block.is_error else text}


def _text(content: str | list[TextBlock], where: str) -> str:
    if isinstance(content, str):
        return content
    for index, block in enumerate(content):
        refuse_unsupported(block, f"{where}.{index}.")
    return "\n".join(block.text for block in content)


def _tools(request: CountTokensRequest) -> Iterator[Tool]:
    for index, tool in enumerate(request.tools or []):
        refuse_unsupported(tool, f"tools.{index}.")
        yield Tool(
            name=tool.name,
            description=tool.description,
            parameters=tool.input_schema,
            strict=tool.strict is True,
        )


def _tool_choice(choice: ToolChoiceParam) -> ToolChoice:
    if (choice.name is not None) != (choice.type == "tool"):
        raise RequestError("tool_choice.name goes with the type tool, and only with it", "tool_choice.name")
    return NamedTool(choice.name) if choice.name is not None else _CHOICES[choice.type]
