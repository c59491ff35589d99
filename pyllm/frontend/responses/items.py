"""Converts the items of the Responses API: to messages, and to the shape in which they are stored and shown."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from pyllm.errors import RequestError
from pyllm.frontend.chat.conversation import call_arguments, input_arguments, left_out_text
from pyllm.frontend.http.ignored_fields import Ignore
from pyllm.frontend.http.unsupported import refuse_unsupported
from pyllm.frontend.responses.encrypted_reasoning import decode_reasoning
from pyllm.frontend.responses.protocol import Item, OutputItem, Part
from pyllm.frontend.responses.tools import APPLY_PATCH, LOCAL_SHELL

_OF_INPUT = "in_"
_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")


def input_items(given: str | Sequence[Item], request_id: str, ignore: Ignore) -> list[Item]:
    """The input of a request with all types, parts and ids filled in. Items of tools that run on a server are left out.

    Raises:
        RequestError: an item is not supported, or lacks a field of its type.
    """
    items = [Item(role="user", content=given)] if isinstance(given, str) else given
    checked = (_checked(item, f"input[{index}]", f"{request_id}_{index}", ignore) for index, item in enumerate(items))
    return [item for item in checked if item is not None]


def responses_of(item_id: str) -> Iterable[str]:
    """The responses that may have an item: its id is made of the request's, that of an input has `in` before it."""
    _, _, rest = item_id.partition("_")
    request_id = rest.rpartition("_")[0]
    yield f"resp_{request_id}"
    if request_id.startswith(_OF_INPUT):
        yield f"resp_{request_id.removeprefix(_OF_INPUT)}"


def items_of(output: Iterable[OutputItem]) -> list[Item]:
    """What a response gave, as items that the next one is given."""
    plain = msgspec.to_builtins(list(output))
    for item in plain:
        item.pop("summary", None)
        if isinstance(item.get("content"), list):
            item["content"] = [{"type": part["type"], "text": part["text"]} for part in item["content"]]
    return msgspec.convert(plain, list[Item])


def messages_of(items: Iterable[Item], instructions: str | None) -> list[dict[str, Any]]:
    """The messages of a conversation, as templates know them. Items of one turn of the assistant's are one message."""
    messages: list[dict[str, Any]] = [] if instructions is None else [{"role": "system", "content": instructions}]
    for item in items:
        match item.type:
            case kind if kind in _OUTPUTS:
                call_id = item.call_id or item.id  # A local shell's output names its call by `id`.
                messages.append({"role": "tool", "tool_call_id": call_id, "content": _text(item.output)})
            case kind if kind in _CALLS:
                _turn(messages, ()).setdefault("tool_calls", []).append(_call(item))
            case "reasoning":
                if text := _reasoning(item):
                    turn = _turn(messages, ("content", "tool_calls", "reasoning"))
                    turn["reasoning"] = turn["reasoning_content"] = text
            case "additional_tools":
                pass
            case _ if item.role == "assistant":
                _turn(messages, ("content", "tool_calls"))["content"] = _text(item.content)
            case _:
                messages.append({"role": item.role, "content": _text(item.content)})
    for message in messages:
        message.setdefault("content", "")
    return messages


def _turn(messages: list[dict[str, Any]], ends: tuple[str, ...]) -> dict[str, Any]:
    """The assistant's message that goes on; a new one where the last has one of `ends`, or is another's."""
    if not messages or messages[-1]["role"] != "assistant" or any(name in messages[-1] for name in ends):
        messages.append({"role": "assistant"})
    return messages[-1]


def _call(item: Item) -> dict[str, Any]:
    name = item.name
    match item.type:
        case "custom_tool_call":
            plain = input_arguments(item.input or "")
        case "local_shell_call":
            name = LOCAL_SHELL.name
            plain = {key: value for key, value in (item.action or {}).items() if key not in ("type", "env", "user")}
        case "apply_patch_call":
            name, plain = APPLY_PATCH.name, item.operation or {}
        case _:
            plain = call_arguments(item.arguments)
    return {"id": item.call_id, "type": "function", "function": {"name": name, "arguments": plain}}


def _reasoning(item: Item) -> str:
    return _text(item.content) or decode_reasoning(item.encrypted_content or "") or _text(item.summary)


# The fields that an item of each type must have, and the beginning of its id.
_NEEDED = {
    "message": ("msg", ("role", "content")),
    "function_call": ("fc", ("call_id", "name", "arguments")),
    "function_call_output": ("fco", ("call_id", "output")),
    "custom_tool_call": ("ctc", ("call_id", "name", "input")),
    "custom_tool_call_output": ("ctco", ("call_id", "output")),
    "local_shell_call": ("lsc", ("call_id", "action")),
    "local_shell_call_output": ("lsco", ("output",)),
    "apply_patch_call": ("apc", ("call_id", "operation")),
    "apply_patch_call_output": ("apco", ("call_id",)),
    "reasoning": ("rs", ()),
    "additional_tools": ("at", ("tools",)),
}
_CALLS = frozenset({"function_call", "custom_tool_call", "local_shell_call", "apply_patch_call"})
_OUTPUTS = frozenset(f"{kind}_output" for kind in _CALLS)
# What tools of other servers did: the model sees neither these tools nor their calls.
_OF_SERVERS = frozenset(
    {
        *("web_search_call", "file_search_call", "code_interpreter_call"),
        *("mcp_list_tools", "mcp_call", "mcp_approval_request", "mcp_approval_response"),
        *("tool_search_call", "tool_search_output"),
    }
)


def _checked(item: Item, where: str, request_id: str, ignore: Ignore) -> Item | None:
    refuse_unsupported(item, f"{where}.")
    kind = item.type or "message"
    if kind in _OF_SERVERS:
        text = f"{where}: an item of type {kind} belongs to a tool that runs on a server; leave it out"
        ignore(f"input.{kind}", text)
        return None
    if kind not in _NEEDED:
        raise RequestError(f"{where}: an item of type {kind!r:.80} is not supported", f"{where}.type")
    prefix, needed = _NEEDED[kind]
    for name in needed:
        if getattr(item, name) is None:
            raise RequestError(f"{where}: an item of type {kind} needs {name}", f"{where}.{name}")
    content = item.content
    if isinstance(content, str):
        content = [Part(type="output_text" if item.role == "assistant" else "input_text", text=content)]
    for name in ("content", "output", "summary"):
        _check_parts(getattr(item, name), f"{where}.{name}", of_tool=name == "output")
    if kind == "reasoning" and item.encrypted_content is not None and not _reasoning(item):
        text = f"{where}.encrypted_content was made by another server, and only that server can read it"
        ignore("input.encrypted_content", text)
    return msgspec.structs.replace(item, type=kind, id=item.id or f"{prefix}_{_OF_INPUT}{request_id}", content=content)


def _check_parts(parts: str | list[Part] | None, where: str, of_tool: bool) -> None:
    for index, part in enumerate(parts if isinstance(parts, list) else ()):
        field = f"{where}[{index}]"
        is_text = part.type == "refusal" and part.refusal is not None
        is_text = is_text or (part.type in _TEXT_PARTS and part.text is not None)
        if not is_text and not (of_tool and left_out_text(part.type)):
            raise RequestError(f"{field}: a part of type {part.type!r} is not supported; send text", field)


def _text(content: str | list[Part] | None) -> str:
    """The text of the parts, one a line."""
    return content if isinstance(content, str) else "\n".join(map(_text_of_part, content or ()))


def _text_of_part(part: Part) -> str:
    return left_out_text(part.type) or (part.refusal if part.type == "refusal" else part.text) or ""
