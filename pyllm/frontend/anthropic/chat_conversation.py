"""Turns Anthropic's messages, tools and tool choices into a conversation."""

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from pyllm.errors import RequestError
from pyllm.frontend.anthropic.protocol import (
    Block,
    CountTokensRequest,
    DocumentBlock,
    ImageBlock,
    InputMessage,
    Part,
    RedactedThinkingBlock,
    ServerToolBlock,
    TextBlock,
    ThinkingBlock,
    ThinkingParam,
    ToolChoiceParam,
    ToolReferenceBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from pyllm.frontend.chat.conversation import Conversation, NamedTool, Tool, ToolChoice, left_out_text
from pyllm.frontend.chat.preprocessor import ChatPreprocessor
from pyllm.frontend.http.ignored_fields import Ignore, ignore_server_tool

_BILLING = "x-anthropic-billing-header"
_CHOICES: dict[str, ToolChoice] = {"auto": "auto", "any": "required", "none": "none"}


def conversation_of(request: CountTokensRequest, ignore: Ignore) -> Conversation:
    """The conversation of a request. A last message of the assistant's is what the answer goes on with.

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
    return Conversation(
        messages=messages,
        tools=tuple(_tools(request, ignore)),
        tool_choice=_tool_choice(choice),
        parallel_tool_calls=not choice.disable_parallel_tool_use,
        reasoning_effort=effort,
        template_variables={} if request.thinking is None else {"enable_thinking": request.thinking.type != "disabled"},
        add_generation_prompt=not continues,
        continue_final_message=continues,
    )


def check_thinking(thinking: ThinkingParam | None, chat: ChatPreprocessor, ignore: Ignore) -> None:
    """Note thinking that the model can neither do nor leave.

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
    if isinstance(message.content, str):
        yield {"role": message.role, "content": message.content}
    elif message.role == "assistant":
        yield _assistant_message(message.content, where, ignore)
    else:
        yield from _input_messages(message.role, message.content, where)


def _input_messages(role: str, blocks: list[Block], where: str) -> Iterator[dict[str, Any]]:
    texts: list[str] = []
    for index, block in enumerate(blocks):
        path = f"{where}.content.{index}"
        match block:
            case TextBlock():
                texts.append(block.text)
            case ToolResultBlock() if role == "user":
                if texts:
                    yield {"role": role, "content": "\n".join(texts)}
                    texts = []
                yield _tool_message(block, path)
            case _:
                raise _misplaced(block, role, path)
    if texts:
        yield {"role": role, "content": "\n".join(texts)}


def _assistant_message(blocks: list[Block], where: str, ignore: Ignore) -> dict[str, Any]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for index, block in enumerate(blocks):
        match block:
            case TextBlock():
                texts.append(block.text)
            case ThinkingBlock():
                thoughts.append(block.thinking)
            case RedactedThinkingBlock():
                pass  # Nobody here can read it.
            case _ if isinstance(block, ServerToolBlock):
                kind = block.__struct_config__.tag
                ignore(f"messages.content.{kind}", f"{where}.content.{index}: a block of type {kind} is not supported")
            case ToolUseBlock():
                function = {"name": block.name, "arguments": block.input}
                calls.append({"id": block.id, "type": "function", "function": function})
            case _:
                raise _misplaced(block, "assistant", f"{where}.content.{index}")
    plain: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if calls:
        plain["tool_calls"] = calls
    if thoughts:
        plain["reasoning"] = plain["reasoning_content"] = "".join(thoughts)
    return plain


def _misplaced(block: Block, role: str, where: str) -> RequestError:
    if isinstance(block, ImageBlock | DocumentBlock):
        return _not_text(block, where)
    kind = block.__struct_config__.tag
    return RequestError(f"{where}: a block of type {kind} is not allowed in the role {role}", where)


def _tool_message(block: ToolResultBlock, where: str) -> dict[str, Any]:
    """Templates have no path for the mark of an error, so the text has it."""
    text = _text(block.content or "", f"{where}.content", of_tool=True)
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": f"Error: {text}" if block.is_error else text}


def _system(content: str | list[Part], ignore: Ignore) -> str:
    """The system prompt, without the line that Claude Code puts first for Anthropic's accounts.

    It differs between conversations, which would have no cached beginning in common.
    """
    if isinstance(content, list) and content and isinstance(content[0], TextBlock):
        name = content[0].text.partition(":")[0]
        if name == _BILLING:
            ignore(f"system.{_BILLING}", f"system.0: {_BILLING} is for Anthropic's accounts; leave it out")
            content = content[1:]
    return _text(content, "system")


def _text(content: str | list[Part], where: str, of_tool: bool = False) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(_text_of_part(block, f"{where}.{index}", of_tool) for index, block in enumerate(content))


def _text_of_part(block: Part, where: str, of_tool: bool) -> str:
    match block:
        case TextBlock():
            return block.text
        case ToolReferenceBlock():
            return f"The tool {block.tool_name} can be called now."
        case _ if of_tool:
            return left_out_text(str(block.__struct_config__.tag))
        case _:
            raise _not_text(block, where)


def _not_text(block: Struct, where: str) -> RequestError:
    return RequestError(f"{where}: a block of type {block.__struct_config__.tag} is not supported; send text", where)


def _tools(request: CountTokensRequest, ignore: Ignore) -> Iterator[Tool]:
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
