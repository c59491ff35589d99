"""Puts a conversation into the nearest form that a chat template renders whole, by what `template_traits.py` found.

One small function for each trait that a template lacks. A message becomes the same whatever follows its turn, so a
conversation that goes on keeps its cached beginning. Renders nothing.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from pyllm.errors import RequestError
from pyllm.frontend.chat.conversation import call_arguments
from pyllm.frontend.chat.template_traits import (
    TemplateTraits,
    in_parts,
    template_traits,
    text_arguments,
    with_functions,
)
from pyllm.frontend.chat.tool_prompt import explained_tools, plain_calls, plain_result
from pyllm.frontend.text.templates import ChatTemplate, Message

_SYSTEM = ("system", "developer")
_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")
_EMPTY_USER: Message = {"role": "user", "content": ""}

Messages = list[Message]


class Shaped(NamedTuple):
    """The messages for a template, its tools, and the traits that it lacks for them, in the order of the changes."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None
    adjusted: tuple[str, ...] = ()


def shaped(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None, traits: TemplateTraits, kind: str
) -> Shaped:
    """A conversation as the template wants it. `kind` is the form in which the model writes its calls.

    `tools` are None where the model may call nothing.

    Raises:
        ValueError, RecursionError: a tool or arguments cannot be written as JSON.
    """
    shape = list(messages)
    adjusted = []
    if tools and not traits.tools:
        shape, tools = explained_tools(shape, tools), None
        adjusted.append("tools")
    elif tools and not traits.tool_descriptions and (described := [_described(tool) for tool in tools]) != tools:
        tools = described
        adjusted.append("tool_descriptions")
    kinds = _kinds(shape)
    for name, (needed, change) in _SHAPES.items():
        if getattr(traits, name, False) or needed.isdisjoint(kinds):
            continue
        changed = change(shape, traits, kind)
        if changed is not shape:
            adjusted.append(name)
            shape, kinds = changed, _kinds(changed)
    return Shaped(shape if adjusted else messages, tools or None, tuple(adjusted))


def shaped_for_program(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None, template: ChatTemplate | None
) -> Shaped:
    """A program's messages in OpenAI's form, whose arguments may be texts, as a template wants them.

    Raises:
        RequestError: a call or result in the messages is not in OpenAI's form, or a tool is not to be written as JSON.
    """
    if template is None:
        return Shaped(messages, tools)
    try:
        read = _each(list(messages), _with_read_arguments)
        return shaped(read, tools, template_traits(template, bool(tools)), "hermes")
    except (LookupError, TypeError, AttributeError) as error:
        text = f"a message of a tool or with tool_calls is not in OpenAI's form: {type(error).__name__}: {error}"
        raise RequestError(text, "messages") from None
    except (ValueError, RecursionError) as error:
        raise RequestError(f"tools cannot be written as JSON: {error}", "tools") from None


def plainest(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None, traits: TemplateTraits) -> Shaped:
    """The same conversation as users and assistants in turns, texts alone: what every template renders.

    Raises:
        ValueError, RecursionError: a tool or arguments cannot be written as JSON.
    """
    fewest = TemplateTraits(*(name == "text_content" and traits.text_content for name in traits.__struct_fields__))
    return shaped(messages, tools, fewest, "hermes")


def _call_order(messages: Messages, traits: TemplateTraits, kind: str) -> Messages:
    """The results of one message's calls follow in the order of the calls."""
    changed: Messages | None = None
    for index, message in enumerate(messages):
        calls = message.get("tool_calls")
        if not calls or len(calls) < 2:
            continue
        order = {call.get("id"): place for place, call in reversed(list(enumerate(calls)))}
        end = _end_of(messages, index + 1, "tool")
        results = messages[index + 1 : end]
        ordered = sorted(results, key=lambda result: order.get(result.get("tool_call_id"), len(calls)))
        if any(one is not other for one, other in zip(results, ordered, strict=True)):
            changed = changed or list(messages)
            changed[index + 1 : end] = ordered
    return changed or messages


def _tool_calls(messages: Messages, traits: TemplateTraits, kind: str) -> Messages:
    """Calls are part of the assistant's text, as the model writes them."""
    return _each(messages, lambda message: plain_calls(message, kind) if message.get("tool_calls") else message)


def _tool_results(messages: Messages, traits: TemplateTraits, kind: str) -> Messages:
    """What tools answered is the user's text."""
    return _each(messages, lambda message: plain_result(message) if message["role"] == "tool" else message)


def _developer(messages: Messages, traits: TemplateTraits, kind: str) -> Messages:
    return _each(messages, lambda message: {**message, "role": "system"} if message["role"] == "developer" else message)


def _late_system(messages: Messages, traits: TemplateTraits, kind: str) -> Messages:
    """Before the first answer it joins the first system message; later it stays where it is, as a user's."""
    begin = _end_of(messages, 0, *_SYSTEM)
    late = [index for index in range(begin, len(messages)) if messages[index]["role"] in _SYSTEM]
    if not late:
        return messages
    answered = _end_of(messages, begin, "user", *_SYSTEM)
    early = [messages[index] for index in late if index < answered]
    rest = [
        {**message, "role": "user"} if message["role"] in _SYSTEM else message
        for index, message in enumerate(messages[begin:], begin)
        if index not in late or index >= answered
    ]
    head = messages[:begin]
    if early:
        head = [_joined([*head, *early])]
    return [*head, *rest]


def _two_systems(messages: Messages, traits: TemplateTraits, kind: str) -> Messages:
    end = _end_of(messages, 0, *_SYSTEM)
    return messages if end < 2 else [_joined(messages[:end]), *messages[end:]]


def _system(messages: Messages, traits: TemplateTraits, kind: str) -> Messages:
    """It stands before the first user's text."""
    end = _end_of(messages, 0, *_SYSTEM)
    return [*({**message, "role": "user"} for message in messages[:end]), *messages[end:]] if end else messages


def _system_before_result(messages: Messages, traits: TemplateTraits, kind: str) -> Messages:
    """It stands before the last user's text, where Mistral's template has it as long as nothing follows that."""
    users = [index for index, message in enumerate(messages) if message["role"] == "user"]
    if not messages or messages[0]["role"] not in _SYSTEM or not users or users[-1] == len(messages) - 1:
        return messages
    system, last = messages[0], users[-1]
    user = {**messages[last], "content": _texts([system, messages[last]])}
    return [*messages[1:last], user, *messages[last + 1 :]]


def _result_alone(messages: Messages, traits: TemplateTraits, kind: str) -> Messages:
    """A result that answers no call before it is the user's text."""
    ids: set[Any] = set()
    changed: Messages = []
    for message in messages:
        ids.update(call.get("id") for call in message.get("tool_calls") or ())
        is_alone = message["role"] == "tool" and message.get("tool_call_id") not in ids
        changed.append(plain_result(message) if is_alone else message)
    return messages if all(one is other for one, other in zip(changed, messages, strict=True)) else changed


def _unanswered_call(messages: Messages, traits: TemplateTraits, kind: str) -> Messages:
    """A call whose result never came has an empty one, unless it is what the model is to go on from."""
    changed: Messages = []
    for message in messages:
        if changed and message["role"] != "tool":
            calls = changed[-1].get("tool_calls") or ()
            changed += [{"role": "tool", "tool_call_id": call.get("id"), "content": ""} for call in calls]
        changed.append(message)
    return messages if len(changed) == len(messages) else changed


def _user_after_result(messages: Messages, traits: TemplateTraits, kind: str) -> Messages:
    """The user's text joins the tool's."""
    changed: Messages = []
    for message in messages:
        if changed and message["role"] == "user" and changed[-1]["role"] == "tool" and _have_text(changed[-1], message):
            changed[-1] = {**changed[-1], "content": _texts([changed[-1], message])}
        else:
            changed.append(message)
    return messages if len(changed) == len(messages) else changed


def _two_users(messages: Messages, traits: TemplateTraits, kind: str) -> Messages:
    return _joined_neighbours(messages, "user")


def _two_assistants(messages: Messages, traits: TemplateTraits, kind: str) -> Messages:
    return _joined_neighbours(messages, "assistant")


def _text_with_call(messages: Messages, traits: TemplateTraits, kind: str) -> Messages:
    """The text is a message of its own, before that of the call."""
    changed: Messages = []
    for message in messages:
        if message.get("tool_calls") and message["content"]:
            changed.append({name: value for name, value in message.items() if name != "tool_calls"})
            if not traits.text_before_call:
                changed.append(_EMPTY_USER)
            changed.append({"role": message["role"], "content": "", "tool_calls": message["tool_calls"]})
        else:
            changed.append(message)
    return messages if len(changed) == len(messages) else changed


def _several_calls(messages: Messages, traits: TemplateTraits, kind: str) -> Messages:
    """Each call is a message, followed by its result."""
    changed: Messages = []
    index = 0
    while index < len(messages):
        message = messages[index]
        index += 1
        calls = message.get("tool_calls")
        if not calls or len(calls) < 2:
            changed.append(message)
            continue
        end = _end_of(messages, index, "tool")
        results = messages[index:end]
        index = end
        for number, call in enumerate(calls):
            first = message if number == 0 else {"role": message["role"], "content": ""}
            changed.append({**first, "tool_calls": [call]})
            answers = [result for result in results if result.get("tool_call_id") == call.get("id")]
            changed += answers
            results = [result for result in results if result not in answers]
        changed += results
    return messages if len(changed) == len(messages) else changed


def _assistant_first(messages: Messages, traits: TemplateTraits, kind: str) -> Messages:
    """An empty message of the user's opens the conversation."""
    begin = _end_of(messages, 0, *_SYSTEM)
    if begin < len(messages) and messages[begin]["role"] != "user":
        return [*messages[:begin], _EMPTY_USER, *messages[begin:]]
    return messages


def _no_user(messages: Messages, traits: TemplateTraits, kind: str) -> Messages:
    if any(message["role"] == "user" for message in messages):
        return messages
    begin = _end_of(messages, 0, *_SYSTEM)
    return [*messages[:begin], _EMPTY_USER, *messages[begin:]]


def _call_ids(messages: Messages, traits: TemplateTraits, kind: str) -> Messages:
    """Ids of nine letters and digits, as Mistral's templates want them: one for each id that is none."""
    return _each(messages, _with_short_ids)


def _object_arguments(messages: Messages, traits: TemplateTraits, kind: str) -> Messages:
    return _each(messages, text_arguments)


def _reasoning(messages: Messages, traits: TemplateTraits, kind: str) -> Messages:
    return _each(
        messages, lambda message: {**message, "thinking": message["reasoning"]} if message.get("reasoning") else message
    )


def _text_content(messages: Messages, traits: TemplateTraits, kind: str) -> Messages:
    return _each(messages, in_parts)


_CALL = "call"  # beside the roles: a message with calls

# In this order: what one makes, those behind it may have to change. Without a trait of its name: always. Each with what
# a conversation must have for it.
_SHAPES: dict[str, tuple[frozenset[str], Callable[[Messages, TemplateTraits, str], Messages]]] = {
    name: (frozenset(needed), change)
    for name, needed, change in (
        ("call_order", [_CALL], _call_order),
        ("tool_calls", [_CALL], _tool_calls),
        ("tool_results", ["tool"], _tool_results),
        ("developer", ["developer"], _developer),
        ("late_system", _SYSTEM, _late_system),
        ("two_systems", _SYSTEM, _two_systems),
        ("system", _SYSTEM, _system),
        ("system_before_result", _SYSTEM, _system_before_result),
        ("result_alone", ["tool"], _result_alone),
        ("unanswered_call", [_CALL], _unanswered_call),
        ("user_after_result", ["tool"], _user_after_result),
        ("assistant_first", ["assistant"], _assistant_first),
        ("no_user", [*_SYSTEM, "assistant", "tool"], _no_user),
        ("two_users", ["user"], _two_users),
        ("two_assistants", ["assistant"], _two_assistants),
        ("text_with_call", [_CALL], _text_with_call),
        ("several_calls", [_CALL], _several_calls),
        ("call_ids", [_CALL, "tool"], _call_ids),
        ("object_arguments", [_CALL], _object_arguments),
        ("reasoning", ["assistant"], _reasoning),
        ("text_content", [*_SYSTEM, "user", "assistant", "tool"], _text_content),
    )
}


def _kinds(messages: Messages) -> set[str]:
    """The roles of the messages, and whether there are calls."""
    kinds = {message["role"] for message in messages}
    if any("tool_calls" in message for message in messages):
        kinds.add(_CALL)
    return kinds


def _each(messages: Messages, change: Callable[[Message], Message]) -> Messages:
    """The messages, each changed; the list itself where none is."""
    changed = [change(message) for message in messages]
    return messages if all(one is other for one, other in zip(changed, messages, strict=True)) else changed


def _end_of(messages: Messages, begin: int, *roles: str) -> int:
    """Where messages of these roles end that begin at a place."""
    while begin < len(messages) and messages[begin]["role"] in roles:
        begin += 1
    return begin


def _joined_neighbours(messages: Messages, role: str) -> Messages:
    changed: Messages = []
    for message in messages:
        if changed and message["role"] == role == changed[-1]["role"] and _have_text(changed[-1], message):
            changed[-1] = _joined([changed[-1], message])
        else:
            changed.append(message)
    return messages if len(changed) == len(messages) else changed


def _joined(messages: Messages) -> Message:
    """Messages as one, of the first's role."""
    first, last = messages[0], messages[-1]
    joined = {**last, **first, "content": _texts(messages)}
    for name in ("reasoning", "reasoning_content"):
        if any(message.get(name) for message in messages):
            joined[name] = "\n\n".join(message[name] for message in messages if message.get(name))
    if calls := [call for message in messages for call in message.get("tool_calls") or ()]:
        joined["tool_calls"] = calls
    return joined


def _texts(messages: Messages) -> str:
    return "\n\n".join(message["content"] for message in messages if message["content"])


def _have_text(*messages: Message) -> bool:
    return all(isinstance(message["content"], str) for message in messages)


def _with_short_ids(message: Message) -> Message:
    if "tool_call_id" in message:
        short = _short_id(message["tool_call_id"])
        return message if short == message["tool_call_id"] else {**message, "tool_call_id": short}
    calls = message.get("tool_calls")
    if not calls:
        return message
    ids = [_short_id(call.get("id")) for call in calls]
    if all(short == call.get("id") for short, call in zip(ids, calls, strict=True)):
        return message
    return {**message, "tool_calls": [{**call, "id": short} for short, call in zip(ids, calls, strict=True)]}


@lru_cache(maxsize=4096)
def _short_id(call_id: str | None) -> str:
    """The id itself where it has the form; else nine digits of its hash."""
    if call_id and _SHORT_ID.fullmatch(call_id):
        return call_id
    return hashlib.sha256(str(call_id).encode(errors="surrogatepass")).hexdigest()[:9]


def _with_read_arguments(message: Message) -> Message:
    return with_functions(message, lambda function: {**function, "arguments": call_arguments(function["arguments"])})


def _described(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tool with a description, and with properties; empty ones where it has none."""
    function = {"description": "", **tool["function"]}
    function["parameters"] = {"type": "object", "properties": {}, **(function.get("parameters") or {})}
    return {**tool, "function": function}
