"""The items of the Responses API as the messages that every API comes to, and as they are kept and shown."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from pyllm.errors import RequestError
from pyllm.frontend.responses.protocol import Item, OutputItem, Part
from pyllm.frontend.unsupported import refuse_unsupported

_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")


def kept_items(given: str | Sequence[Item], request_id: str) -> list[Item]:
    """The input of a request in its long form: types, parts and ids are all there.

    Raises:
        RequestError: an item is not supported, or lacks a field of its type.
    """
    items = [Item(role="user", content=given)] if isinstance(given, str) else given
    return [_kept(item, f"input[{index}]", f"{request_id}_{index}") for index, item in enumerate(items)]


def items_of(output: Iterable[OutputItem]) -> list[Item]:
    """What a response gave, as items that the next one is given."""
    plain = msgspec.to_builtins(list(output))
    for item in plain:
        item.pop("summary", None)
        if isinstance(item.get("content"), list):
            item["content"] = [{"type": part["type"], "text": part["text"]} for part in item["content"]]
    return msgspec.convert(plain, list[Item])


def messages_of(items: Iterable[Item], instructions: str | None) -> list[dict[str, Any]]:
    """The messages of a conversation, as templates know them. Items of one turn of the assistant's are one message.

    Raises:
        RequestError: the arguments of a call are no JSON object.
    """
    messages: list[dict[str, Any]] = [] if instructions is None else [{"role": "system", "content": instructions}]
    for item in items:
        match item.type:
            case "function_call_output":
                messages.append({"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output)})
            case "function_call":
                _turn(messages, ()).setdefault("tool_calls", []).append(_call(item))
            case "reasoning":
                turn = _turn(messages, ("content", "tool_calls", "reasoning"))
                turn["reasoning"] = turn["reasoning_content"] = _text(item.content or item.summary)
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
    try:
        arguments = msgspec.json.decode(item.arguments or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        text = f"the arguments of the function call {item.call_id!r} are no JSON object"
        raise RequestError(text, "input") from None
    return {"id": item.call_id, "type": "function", "function": {"name": item.name, "arguments": arguments}}


# The fields that an item of each type must have.
_NEEDED = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "reasoning": (),
}


def _kept(item: Item, where: str, request_id: str) -> Item:
    refuse_unsupported(item, f"{where}.")
    kind = item.type or "message"
    for name in _NEEDED[kind]:
        if getattr(item, name) is None:
            raise RequestError(f"{where}: an item of type {kind} needs {name}", f"{where}.{name}")
    content = item.content
    if isinstance(content, str):
        content = [Part(type="output_text" if item.role == "assistant" else "input_text", text=content)]
    for name in ("content", "output", "summary"):
        _check_parts(getattr(item, name), f"{where}.{name}")
    prefix = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}[kind]
    return msgspec.structs.replace(item, type=kind, id=item.id or f"{prefix}_in_{request_id}", content=content)


def _check_parts(parts: str | list[Part] | None, where: str) -> None:
    for index, part in enumerate(parts if isinstance(parts, list) else ()):
        field = f"{where}[{index}]"
        if part.type not in _TEXT_PARTS or part.text is None:
            raise RequestError(f"{field}: a part of type {part.type!r} is not supported; send text", field)
        refuse_unsupported(part, f"{field}.")


def _text(content: str | list[Part] | None) -> str:
    """The text of the parts, one a line."""
    return content if isinstance(content, str) else "\n".join(part.text or "" for part in content or ())
