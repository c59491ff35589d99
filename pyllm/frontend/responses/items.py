"""Converts the items of the Responses API: to messages, and to the shape in which they are stored and shown."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from pyllm.errors import RequestError
from pyllm.frontend.chat.conversation import call_arguments, input_arguments
from pyllm.frontend.chat.history_parts import TEXT_PARTS, part_text, result_text
from pyllm.frontend.http.unsupported import refuse_unsupported
from pyllm.frontend.responses.encrypted_reasoning import decode_reasoning
from pyllm.frontend.responses.protocol import Item, OutputItem, Part
from pyllm.frontend.responses.tools import APPLY_PATCH, LOCAL_SHELL
from pyllm.frontend.text.json_schemas import Ignore

_OF_INPUT = "in_"


def input_items(given: str | Sequence[Item], request_id: str, ignore: Ignore) -> list[Item]:
    """The input of a request with all types, parts and ids filled in. Items of tools that run on a server are left out.

    Raises:
        RequestError: an item is not supported, or lacks a field of its type.
    """
    items = [Item(role="user", content=given)] if isinstance(given, str) else given
    checked = (_checked(item, f"input[{index}]", f"{request_id}_{index}", ignore) for index, item in enumerate(items))
    return [item for item in checked if item is not None]


def responses_of(item_id: str) -> Iterable[str]:
    """The ids of the responses that may have an item: an item's id has the request's id, after `in` for inputs."""
    _, _, rest = item_id.partition("_")
    request_id = rest.rpartition("_")[0]
    yield f"resp_{request_id}"
    if request_id.startswith(_OF_INPUT):
        yield f"resp_{request_id.removeprefix(_OF_INPUT)}"


def items_of(output: Iterable[OutputItem]) -> list[Item]:
    """A response's output as input items of the next one."""
    plain = msgspec.to_builtins(list(output))
    for item in plain:
        item.pop("summary", None)
        if isinstance(item.get("content"), list):
            item["content"] = [{"type": part["type"], "text": part["text"]} for part in item["content"]]
    return msgspec.convert(plain, list[Item])


def messages_of(items: Iterable[Item], instructions: str | None) -> list[dict[str, Any]]:
    """The messages of a conversation, as templates know them. The items of one assistant's turn are one message."""
    messages: list[dict[str, Any]] = [] if instructions is None else [{"role": "system", "content": instructions}]
    for item in items:
        match item.type:
            case "additional_tools":
                pass
            case str(kind) if kind.endswith("_output"):
                # A local shell's output names its call by `id`.
                call_id = item.call_id or (item.id if kind == "local_shell_call_output" else None)
                named = {} if call_id is None else {"tool_call_id": call_id}
                messages.append({"role": "tool", "content": result_text(item.output), **named})
            case str(kind) if kind.endswith("_call") and (kind in _NEEDED or item.call_id):
                _turn(messages, ()).setdefault("tool_calls", []).append(_call(item))
            case "reasoning":
                if text := _reasoning(item):
                    turn = _turn(messages, ("content", "tool_calls", "reasoning"))
                    turn["reasoning"] = turn["reasoning_content"] = text
            case kind:
                text = result_text(item.content) if kind == "message" else _noted(item)
                if item.role in _ANSWERS:
                    _turn(messages, ("content", "tool_calls"))["content"] = text
                else:
                    messages.append({"role": item.role, "content": text})
    for message in messages:
        message.setdefault("content", "")
    return messages


def _turn(messages: list[dict[str, Any]], ends: tuple[str, ...]) -> dict[str, Any]:
    """The assistant's last message, to be extended; a new one if that has one of `ends`, or is not the assistant's."""
    if not messages or messages[-1]["role"] != "assistant" or any(name in messages[-1] for name in ends):
        messages.append({"role": "assistant"})
    return messages[-1]


def _call(item: Item) -> dict[str, Any]:
    """The call in an item. The item's type is the tool's name if the item has no other."""
    name = item.name or str(item.type).removesuffix("_call")
    match item.type:
        case "custom_tool_call":
            plain = input_arguments(item.input or "")
        case "local_shell_call":
            name = LOCAL_SHELL.name
            plain = {key: value for key, value in (item.action or {}).items() if key not in ("type", "env", "user")}
        case "apply_patch_call":
            name, plain = APPLY_PATCH.name, item.operation or {}
        case _:
            plain = call_arguments(item.arguments or item.action)
    return {"id": item.call_id or "", "type": "function", "function": {"name": name, "arguments": plain}}


def _noted(item: Item) -> str:
    """The text of an item of an unknown type, or a note about it."""
    fields = ("summary", "content", "output", "arguments", "action")
    return part_text({"type": item.type, **{name: getattr(item, name) for name in fields}})


def _reasoning(item: Item) -> str:
    return result_text(item.content) or decode_reasoning(item.encrypted_content or "") or result_text(item.summary)


# The beginning of an item's id, and the fields that it must have, by its type. Other types are known by their ending.
_NEEDED: dict[str, tuple[str, tuple[str, ...]]] = {
    "message": ("msg", ("role",)),
    "function_call": ("fc", ("name",)),
    "function_call_output": ("fco", ()),
    "custom_tool_call": ("ctc", ("name",)),
    "custom_tool_call_output": ("ctco", ()),
    "local_shell_call": ("lsc", ()),
    "local_shell_call_output": ("lsco", ()),
    "apply_patch_call": ("apc", ()),
    "apply_patch_call_output": ("apco", ()),
    "reasoning": ("rs", ()),
    "additional_tools": ("at", ("tools",)),
}
# The roles of the assistant's items.
_ANSWERS = (None, "assistant")
# Items of tools that run on a server: the model sees neither these tools nor their calls.
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
    prefix, needed = _NEEDED.get(kind, ("item", ()))
    if kind == "message" and item.role not in _ANSWERS:
        needed = ("content",)
    for name in needed:
        if getattr(item, name) is None:
            raise RequestError(f"{where}: an item of type {kind} needs {name}", f"{where}.{name}")
    content = item.content
    if isinstance(content, str):
        content = [Part(type="output_text" if item.role == "assistant" else "input_text", text=content)]
    if item.role not in _ANSWERS:
        _check_parts(content or (), f"{where}.content")
    if kind == "reasoning" and item.encrypted_content is not None and not _reasoning(item):
        text = f"{where}.encrypted_content was made by another server, and only that server can read it"
        ignore("input.encrypted_content", text)
    return msgspec.structs.replace(item, type=kind, id=item.id or f"{prefix}_{_OF_INPUT}{request_id}", content=content)


def _check_parts(parts: Iterable[Part], where: str) -> None:
    """Refuse parts that are not text in messages of the user or the system: they would be lost."""
    for index, part in enumerate(parts):
        text = part.refusal if part.type == "refusal" else part.text if part.type in TEXT_PARTS else None
        if text is None:
            field = f"{where}[{index}]"
            raise RequestError(f"{field}: a part of type {part.type!r:.80} is not supported; send text", field)
