"""Puts a conversation into the nearest form that a chat template renders whole, by the template's traits.

One small function for each trait that a template lacks. A message's form does not depend on later turns, so a continued
conversation keeps its cached prefix. Renders nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from pyllm.frontend.chat.template_traits import TemplateTraits, in_parts, text_arguments
from pyllm.frontend.chat.tool_prompt import explained_tools
from pyllm.frontend.chat.tool_turns import (
    EMPTY_USER,
    Messages,
    calls_in_words,
    end_of,
    joined_texts,
    late_results_moved,
    lone_results_as_text,
    results_as_users,
    results_in_order,
    single_calls,
    texts_apart,
    unanswered_in_words,
    users_before_calls,
    users_joined_to_results,
    with_short_ids,
)
from pyllm.frontend.text.templates import Message

_SYSTEM = ("system", "developer")
_CHANNEL_TAG = "<|channel|>"


class Shaped(NamedTuple):
    """The messages for a template, its tools, and the traits that it lacks for them, in the order of the changes."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None
    adjusted: tuple[str, ...] = ()


def shaped(
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] | None,
    traits: TemplateTraits,
    tool_call_parser: str = "hermes",
) -> Shaped:
    """A conversation as the template wants it. Without `tools` the model may call nothing.

    Calls that the template does not render are written in the form that `tool_call_parser` reads.

    Raises:
        RequestError: a tool or arguments cannot be written as JSON.
    """
    shape = list(messages)
    adjusted = []
    if tools and not traits.tools:
        shape, tools = explained_tools(shape, tools), None
        adjusted.append("tools")
    elif tools and not traits.tool_descriptions and (described := [_described(tool) for tool in tools]) != tools:
        tools = described
        adjusted.append("tool_descriptions")
    roles = _roles(shape)
    for name, (needed, change) in _SHAPES.items():
        if getattr(traits, name, False) or needed.isdisjoint(roles):
            continue
        changed = change(shape, tool_call_parser) if name in _IN_WORDS else change(shape)
        if changed != shape:
            adjusted.append(name)
            shape, roles = changed, _roles(changed)
    return Shaped(shape if adjusted else messages, tools or (None if traits.no_tools else []), tuple(adjusted))


def plainest(
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] | None,
    traits: TemplateTraits,
    tool_call_parser: str = "hermes",
) -> Shaped:
    """The conversation as alternating texts of users and assistants, beside tools that the template shows.

    Raises:
        RequestError: a tool or arguments cannot be written as JSON.
    """
    kept = {name: getattr(traits, name) for name in ("tools", "no_tools", "reasoning_field", "text_content")}
    fewest = TemplateTraits(**dict.fromkeys(traits.__struct_fields__, False) | kept)
    return shaped(messages, tools, fewest, tool_call_parser)


def _late_system(messages: Messages) -> Messages:
    """Join system messages before the first answer to the first one; turn later ones into user messages."""
    begin = end_of(messages, 0, *_SYSTEM)
    answered = end_of(messages, begin, "user", *_SYSTEM)
    head, asked = messages[:begin], messages[begin:answered]
    if late := [message for message in asked if message["role"] in _SYSTEM]:
        head = [_joined([*head, *late])]
        asked = [message for message in asked if message["role"] not in _SYSTEM]
    return [*head, *asked, *_as_users(messages[answered:])]


def _two_systems(messages: Messages) -> Messages:
    end = end_of(messages, 0, *_SYSTEM)
    return [_joined(messages[:end]), *messages[end:]] if end else messages


def _system(messages: Messages) -> Messages:
    """Turn the system messages at the beginning into user messages."""
    end = end_of(messages, 0, *_SYSTEM)
    return [*_as_users(messages[:end]), *messages[end:]]


def _system_before_result(messages: Messages) -> Messages:
    """Put the system message before the last user's text, as Mistral's template does where nothing follows that."""
    users = [index for index, message in enumerate(messages) if message["role"] == "user"]
    if messages[0]["role"] not in _SYSTEM or not users or users[-1] == len(messages) - 1:
        return messages
    system, last = messages[0], users[-1]
    user = {**messages[last], "content": joined_texts([system, messages[last]])}
    return [*messages[1:last], user, *messages[last + 1 :]]


def _assistant_first(messages: Messages) -> Messages:
    begin = end_of(messages, 0, *_SYSTEM)
    has_other = begin < len(messages) and messages[begin]["role"] != "user"
    return _opened_by_user(messages) if has_other else messages


def _no_user(messages: Messages) -> Messages:
    return messages if any(message["role"] == "user" for message in messages) else _opened_by_user(messages)


def _opened_by_user(messages: Messages) -> Messages:
    """Open the conversation with an empty user message."""
    begin = end_of(messages, 0, *_SYSTEM)
    return [*messages[:begin], EMPTY_USER, *messages[begin:]]


def _joined_neighbours(messages: Messages, role: str) -> Messages:
    changed: Messages = []
    run: Messages = []  # of the role
    for message in messages:
        if message["role"] == role:
            run.append(message)
            continue
        if run:
            changed.append(_joined(run))
            run = []
        changed.append(message)
    return [*changed, _joined(run)] if run else changed


def _as_users(messages: Messages) -> Messages:
    return [{**message, "role": "user"} if message["role"] in _SYSTEM else message for message in messages]


def _as_system(message: Message) -> Message:
    return {**message, "role": "system"} if message["role"] == "developer" else message


def _with_open_tags(message: Message) -> Message:
    """Rewrite Harmony's channel tag in an answer to plain text."""
    if message["role"] != "assistant":
        return message
    tagged = {
        name: text.replace(_CHANNEL_TAG, "<| channel |>")
        for name in ("content", "reasoning", "reasoning_content")
        if (text := message.get(name)) and _CHANNEL_TAG in text
    }
    return {**message, **tagged} if tagged else message


def _as_thinking(message: Message) -> Message:
    return {**message, "thinking": message["reasoning"]} if message.get("reasoning") else message


def _as_thinking_part(message: Message) -> Message:
    if not (reasoning := message.get("reasoning")):
        return message
    texts = [{"type": "text", "text": message["content"]}] if message["content"] else []
    return {**message, "content": [{"type": "thinking", "thinking": reasoning}, *texts]}


def _with_blank(message: Message) -> Message:
    is_empty = message["role"] == "assistant" and not message["content"] and not message.get("tool_calls")
    return {**message, "content": " "} if is_empty else message


def _each(change: Callable[[Message], Message]) -> Callable[[Messages], Messages]:
    return lambda messages: [change(message) for message in messages]


_CALL = "call"  # beside the roles: a message with calls

# Each change by its trait, with the roles of which a conversation must have one. A change without a trait of its name
# is always made. The order matters: a change works on the result of the earlier ones.
_SHAPES: dict[str, tuple[frozenset[str], Callable[..., Messages]]] = {
    name: (frozenset(needed), change)
    for name, needed, change in (
        ("late_result", [_CALL], late_results_moved),
        ("call_order", [_CALL], results_in_order),
        ("tool_calls", [_CALL], calls_in_words),
        ("tool_results", ["tool"], results_as_users),
        ("developer", ["developer"], _each(_as_system)),
        ("late_system", _SYSTEM, _late_system),
        ("two_systems", _SYSTEM, _two_systems),
        ("system", _SYSTEM, _system),
        ("result_alone", ["tool"], lone_results_as_text),
        ("unanswered_call", [_CALL], unanswered_in_words),
        ("user_after_result", ["tool"], users_joined_to_results),
        ("assistant_first", ["assistant"], _assistant_first),
        ("no_user", [*_SYSTEM, "assistant", "tool"], _no_user),
        ("two_users", ["user"], partial(_joined_neighbours, role="user")),
        ("two_assistants", ["assistant"], partial(_joined_neighbours, role="assistant")),
        ("text_with_call", [_CALL], texts_apart),
        ("text_before_call", [_CALL], users_before_calls),
        ("several_calls", [_CALL], single_calls),
        ("system_before_result", _SYSTEM, _system_before_result),
        ("call_ids", [_CALL, "tool"], _each(with_short_ids)),
        ("object_arguments", [_CALL], _each(text_arguments)),
        ("channel_tags", ["assistant"], _each(_with_open_tags)),
        ("reasoning", ["assistant"], _each(_as_thinking)),
        ("reasoning_field", ["assistant"], _each(_as_thinking_part)),
        ("empty_assistant", ["assistant"], _each(_with_blank)),
        ("text_content", [*_SYSTEM, "user", "assistant", "tool"], _each(in_parts)),
    )
}
# Changes that write calls as the model does.
_IN_WORDS = ("tool_calls", "unanswered_call")


def _roles(messages: Messages) -> set[str]:
    """The roles of the messages, and whether there are calls."""
    roles = {_CALL if "tool_calls" in message else message["role"] for message in messages}
    if _CALL in roles:
        roles.add("assistant")
    return roles


def _joined(messages: Messages) -> Message:
    """Messages as one, of the first's role."""
    if len(messages) == 1:
        return messages[0]
    joined = {**messages[-1], **messages[0], "content": joined_texts(messages)}
    if len(joined) == 2:
        return joined
    for name in ("reasoning", "reasoning_content"):
        if name in joined:
            joined[name] = "\n\n".join([message[name] for message in messages if message.get(name)])
    if "tool_calls" in joined:
        joined["tool_calls"] = [call for message in messages for call in message.get("tool_calls") or ()]
    return joined


def _described(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tool with a description, and with properties; empty ones where it has none."""
    if not isinstance(tool.get("function"), Mapping):
        return tool
    function = {"description": "", **tool["function"]}
    function["parameters"] = {"type": "object", "properties": {}, **(function.get("parameters") or {})}
    return {**tool, "function": function}
