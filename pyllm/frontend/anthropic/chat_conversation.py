"""Turns Anthropic's messages, tools and tool choices into a conversation."""

from collections.abc import Iterable, Iterator
from typing import Any

from pyllm.errors import RequestError
from pyllm.frontend.anthropic.protocol import (
    Block,
    InputMessage,
    PromptRequest,
    ThinkingParam,
    ToolChoiceParam,
)
from pyllm.frontend.chat.conversation import Conversation, NamedTool, Tool, ToolChoice, call_arguments
from pyllm.frontend.chat.history_parts import document_text, part_text, result_text
from pyllm.frontend.chat.preprocessor import ChatPreprocessor
from pyllm.frontend.http.ignored_fields import ignore_server_tool
from pyllm.frontend.text.json_schemas import Ignore

_BILLING = "x-anthropic-billing-header"
# Suffixes of the block types of tools that run on a server. The model sees neither these tools nor their calls.
_OF_SERVERS = ("_tool_use", "_tool_result")
# Blocks that are allowed in one role only.
_PLACED = frozenset({"tool_use", "tool_result", "thinking", "redacted_thinking"})
# The user's blocks that have a text.
_READABLE = frozenset({"search_result", "compaction"})
_CHOICES: dict[str, ToolChoice] = {"auto": "auto", "any": "required", "none": "none"}


def conversation_of(request: PromptRequest, ignore: Ignore) -> Conversation:
    """The conversation of a request. The answer continues a last message of the assistant.

    Raises:
        RequestError: a field is not honoured, or a block is not for this role.
    """
    messages: list[dict[str, Any]] = []
    if system := _system(request.system or "", ignore):
        messages.append({"role": "system", "content": system})
    for index, message in enumerate(request.messages):
        messages += _plain(message, f"messages.{index}", ignore)
    continues = bool(messages) and messages[-1]["role"] == "assistant"
    if continues and "tool_calls" in messages[-1]:
        raise RequestError("the last message calls a tool; send its tool_result after it", "messages")
    choice = request.tool_choice or ToolChoiceParam(type="auto")
    effort = None if request.output_config is None else request.output_config.effort
    thinking = {} if request.thinking is None else {"enable_thinking": request.thinking.type != "disabled"}
    return Conversation(
        messages=messages,
        tools=tuple(_tools(request, ignore)),
        tool_choice=_tool_choice(choice),
        parallel_tool_calls=not choice.disable_parallel_tool_use,
        reasoning_effort=effort,
        template_variables={**(request.chat_template_kwargs or {}), **thinking},
        add_generation_prompt=not continues,
        continue_final_message=continues,
    )


def thinking_budget(thinking: ThinkingParam | None, chat: ChatPreprocessor, ignore: Ignore) -> int | None:
    """The maximum number of thinking tokens. Notes a budget that cannot be enforced.

    Raises:
        RequestError: the server is strict.
    """
    if thinking is None or thinking.budget_tokens is None:
        return None
    reason = chat.markers.missing if thinking.type == "enabled" else f"it is for the type enabled, not {thinking.type}"
    if not reason:
        return thinking.budget_tokens
    ignore("thinking.budget_tokens", f"thinking.budget_tokens has no effect: {reason}")
    return None


def check_thinking(thinking: ThinkingParam | None, chat: ChatPreprocessor, ignore: Ignore) -> None:
    """Note a setting of thinking that the model cannot follow.

    Raises:
        RequestError: the server is strict.
    """
    if thinking is None or chat.template_reads("enable_thinking"):
        return
    if thinking.type == "disabled":
        if chat.has_reasoning:
            ignore("thinking", "thinking cannot be disabled: the model's chat template has no switch for it")
    elif not chat.has_reasoning:
        ignore(
            "thinking",
            "thinking has no effect: this server runs without a reasoning parser (--reasoning-parser)",
        )


def _plain(message: InputMessage, where: str, ignore: Ignore) -> Iterator[dict[str, Any]]:
    """One message as templates know it; results of tools are messages of their own."""
    content = message.content or ""
    if isinstance(content, str):
        yield {"role": message.role, "content": content}
        return
    shown = [(block, f"{where}.content.{at}") for at, block in enumerate(content)]
    for block, path in shown:
        if block.type.endswith(_OF_SERVERS):
            ignore(f"messages.content.{block.type}", f"{path}: a block of type {block.type} is not supported")
    shown = [(block, path) for block, path in shown if not block.type.endswith(_OF_SERVERS)]
    if message.role == "assistant":
        yield _assistant_message(shown)
    else:
        yield from _input_messages(message.role, shown)


def _input_messages(role: str, blocks: Iterable[tuple[Block, str]]) -> Iterator[dict[str, Any]]:
    texts: list[str] = []
    for block, path in blocks:
        if block.type == "tool_result" and role == "user":
            if texts:
                yield {"role": role, "content": "\n".join(texts)}
                texts = []
            yield _tool_message(block)
        elif block.type in _PLACED:
            raise _misplaced(block, role, path)
        else:
            texts.append(_users_text(block, path))
    if texts:
        yield {"role": role, "content": "\n".join(texts)}


def _assistant_message(blocks: Iterable[tuple[Block, str]]) -> dict[str, Any]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block, path in blocks:
        match block.type:
            case "thinking":
                thoughts.append(part_text(block))
            case "redacted_thinking":
                pass  # The server cannot read it.
            case "tool_use":
                if block.name is None:
                    raise RequestError(f"{path}: a block of type tool_use needs name", f"{path}.name")
                function = {"name": block.name, "arguments": call_arguments(block.input)}
                calls.append({"id": block.id or "", "type": "function", "function": function})
            case "tool_result":
                raise _misplaced(block, "assistant", path)
            case "text":
                texts.append(block.text or "")
            case _:
                texts += ["\n"] if texts else []
                texts.append(f"{part_text(block)}\n")
    plain: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if calls:
        plain["tool_calls"] = calls
    if thoughts:
        plain["reasoning"] = plain["reasoning_content"] = "".join(thoughts)
    return plain


def _misplaced(block: Block, role: str, where: str) -> RequestError:
    return RequestError(f"{where}: a block of type {block.type} is not allowed in the role {role}", where)


def _tool_message(block: Block) -> dict[str, Any]:
    """The message of a tool's result. Templates read no flag for errors, so the text names them."""
    content = block.content
    if isinstance(content, list):
        content = [_reference(part) or part for part in content]
    text = result_text(content)
    plain = {"role": "tool", "content": f"Error: {text}" if block.is_error else text}
    return plain | ({"tool_call_id": block.tool_use_id} if block.tool_use_id else {})


def _reference(part: Any) -> str:
    """A sentence about a tool that a search for tools has found. Its definition is among the request's tools."""
    is_reference = isinstance(part, dict) and part.get("type") == "tool_reference" and "tool_name" in part
    return f"The tool {part['tool_name']} can be called now." if is_reference else ""


def _users_text(block: Block, where: str) -> str:
    """The text of a user's or system's block. A block without text is refused, as it would be lost."""
    if block.type == "document":
        text = document_text(block)
    else:
        text = block.text if block.type == "text" else part_text(block) if block.type in _READABLE else None
    if text is None:
        raise RequestError(f"{where}: a block of type {block.type:.80} is not supported; send text", where)
    return text


def _system(content: str | list[Block], ignore: Ignore) -> str:
    """The system prompt, without the line that Claude Code puts first for Anthropic's accounts.

    The line differs between conversations, which would then share no cached prefix.
    """
    if isinstance(content, str):
        return content
    if content and content[0].type == "text" and (content[0].text or "").partition(":")[0] == _BILLING:
        ignore(f"system.{_BILLING}", f"system.0: {_BILLING} is for Anthropic's accounts; leave it out")
        content = content[1:]
    return "\n".join(_users_text(block, f"system.{index}") for index, block in enumerate(content))


def _tools(request: PromptRequest, ignore: Ignore) -> Iterator[Tool]:
    for index, tool in enumerate(request.tools or []):
        if tool.type not in (None, "custom"):
            ignore_server_tool(tool.type, f"tools.{index}", ignore)
            continue
        for name in ("name", "input_schema"):
            if getattr(tool, name) is None:
                raise RequestError(f"tools.{index}.{name} is missing", f"tools.{index}.{name}")
        assert tool.name is not None
        yield Tool(
            name=tool.name,
            description=tool.description,
            parameters=tool.input_schema,
            strict=tool.strict is True,
        )


def _tool_choice(choice: ToolChoiceParam) -> ToolChoice:
    if (choice.name is not None) != (choice.type == "tool"):
        raise RequestError("tool_choice.name and the type tool go together; send both or neither", "tool_choice.name")
    return NamedTool(choice.name) if choice.name is not None else _CHOICES[choice.type]
