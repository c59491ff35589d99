"""The traits of a chat template, found by rendering short probe conversations. Changes no message."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from msgspec import Struct

from pyllm.errors import RequestError
from pyllm.frontend.chat.tool_prompt import spaced_json
from pyllm.frontend.text.templates import ChatTemplate, Message

# Templates whose traits are remembered, with tools and without: the model's own, and those that requests bring.
_MAX_TEMPLATES = 128

_NAME, _CALLED = "look_up_places", "find_route"
_THOUGHT = "a thought before"
_THOUGHT_PARTS = [{"type": "thinking", "thinking": _THOUGHT}]
_TAGGED = "<|channel|>final<|message|>a channel"
_ID, _OTHER_ID = "a1b2c3d4e", "f5g6h7i8j"
_LONG_IDS = {_ID: "call_0123456789abcdef01234567", _OTHER_ID: "call_89abcdef0123456789abcdef"}
_CITY = {"type": "string", "description": "the city to look up"}
_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "It looks places up.",
        "parameters": {"type": "object", "properties": {"city": _CITY}, "required": ["city"]},
    },
}
_BARE_TOOL: dict[str, Any] = {"type": "function", "function": {"name": _NAME, "parameters": {"type": "object"}}}


class TemplateTraits(Struct, frozen=True):
    """The abilities of a template; each is True where it renders every word of such a conversation, in order.

    `message_shapes.py` has the forms for lacking traits. Two are not about messages: with `tools` the template shows
    its tools, and with `no_tools` it renders without a list of tools.
    """

    tools: bool = True
    no_tools: bool = True
    tool_descriptions: bool = True  # a tool may lack a description, and parameters their properties
    system: bool = True
    developer: bool = True
    two_systems: bool = True  # system messages in a row at the beginning
    late_system: bool = True  # behind other messages
    two_users: bool = True  # in a row
    two_assistants: bool = True
    no_user: bool = True
    assistant_first: bool = True
    system_before_result: bool = True  # a system message, where the conversation does not end with a user's
    tool_calls: bool = True  # calls in the history; of a template that shows no tools, they are in words, too
    tool_results: bool = True
    object_arguments: bool = True  # else arguments are a text of JSON
    text_with_call: bool = True  # in one message
    text_before_call: bool = True  # in two
    several_calls: bool = True  # in one message
    result_alone: bool = True  # without a call that it answers
    unanswered_call: bool = True
    late_result: bool = True  # behind other messages than its call and results
    user_after_result: bool = True
    call_ids: bool = True  # of any form, not only nine letters and digits
    empty_assistant: bool = True
    channel_tags: bool = True  # Harmony's, in an answer
    reasoning: bool = True  # under our names, else under `thinking` alone, as gpt-oss
    reasoning_field: bool = True  # else it is a part of the content, as in Ministral 3
    text_content: bool = True  # else content is a list of parts


@lru_cache(maxsize=_MAX_TEMPLATES)
def template_traits(template: ChatTemplate, with_tools: bool) -> TemplateTraits:
    """The traits of a template for conversations with or without tools. Takes some 30 renders, once."""
    return _Probes(template, [_TOOL] if with_tools else None).traits()


class _Probes:
    """The probe conversations of one template. All texts in them differ."""

    def __init__(self, template: ChatTemplate, tools: Sequence[Mapping[str, Any]] | None) -> None:
        self._template = template
        self._tools = tools
        self._in_parts = False  # content
        self._as_text = False  # arguments

    def traits(self) -> TemplateTraits:
        """All traits; each probe respects the traits found before it."""
        no_tools = self._choose_rendering()
        tools = self._shows(_TOOL)
        self._tools = self._tools if tools else None if no_tools else []
        system = self._renders(_system(0), _user(0))
        developer = self._renders(_system(0, "developer"), _user(0))
        roles = ["system"] * system + ["developer"] * developer
        late = roles or ["system"]
        call, result = _call(_ID), _result(_ID)
        turn = (_user(0), call, result, _assistant(0), _user(1))
        self._as_text = not self._renders(*turn)
        renders_calls = not self._as_text or self._renders(*turn)
        self._as_text &= renders_calls
        tool_calls = tools and renders_calls
        answered = (call, result) if tool_calls else ()
        in_field = self._renders_reasoning(reasoning=_THOUGHT, reasoning_content=_THOUGHT)
        return TemplateTraits(
            tools=tools,
            no_tools=no_tools,
            tool_descriptions=not tools or self._shows(_BARE_TOOL),
            system=system,
            developer=developer,
            two_systems=all(self._renders(_system(0, a), _system(1, b), _user(0)) for a in late for b in late),
            late_system=all(self._renders_late(role, answered) for role in late),
            two_users=self._renders(_user(0), _user(1), _assistant(0), _user(2)),
            two_assistants=self._renders(_user(0), _assistant(0), _assistant(1), _user(1)),
            no_user=self._renders(_system(0) if system else _assistant(0)),
            assistant_first=self._renders(_assistant(0), _user(0))
            and (not system or self._renders(_system(0), _assistant(0), _user(0))),
            system_before_result=not (system and tool_calls) or self._renders(_system(0), _user(0), call, result),
            tool_calls=tool_calls,
            tool_results=tools
            and (renders_calls or self._renders(_user(0), _assistant(0), result, _assistant(1), _user(1))),
            object_arguments=not self._as_text,
            text_with_call=self._renders_in_any_order(_user(0), _call(_ID, text="first words"), result, _assistant(0)),
            text_before_call=self._renders(_user(0), _assistant(0), *answered, _assistant(1), _user(1)),
            several_calls=self._renders_in_any_order(
                *(_user(0), _call(_ID, _OTHER_ID), result, _result(_OTHER_ID), _assistant(0), _user(1))
            ),
            result_alone=self._renders(_user(0), result, _assistant(0), _user(1)),
            unanswered_call=self._renders(_user(0), call, _user(1)),
            late_result=not answered or self._renders_late_results(),
            user_after_result=not answered or self._renders(_user(0), *answered, _user(1), _assistant(0), _user(2)),
            call_ids=self._renders(_user(0), *map(_with_long_ids, answered), _assistant(0), _user(1)),
            empty_assistant=self._renders(_user(0), {"role": "assistant", "content": ""}, _user(1)),
            channel_tags=self._renders(_user(0), {"role": "assistant", "content": _TAGGED}, _user(1)),
            reasoning=in_field or not self._renders_reasoning(thinking=_THOUGHT),
            reasoning_field=in_field
            or self._renders_reasoning(thinking=_THOUGHT)
            or not self._renders_reasoning(content=_THOUGHT_PARTS),
            text_content=not self._in_parts,
        )

    def _choose_rendering(self) -> bool:
        """Choose content in parts or as text, and an empty list of tools if needed; return whether it is not needed."""
        for tools, self._in_parts in ((None, False), (None, True), ([], False), ([], True)):
            if self._shows_user(self._tools or tools):
                break
        else:
            tools, self._in_parts = None, False
        self._tools = self._tools or tools
        return self._shows_user(None)

    def _shows_user(self, tools: Sequence[Mapping[str, Any]] | None) -> bool:
        text = self._text([_user(0)], tools)
        return text is not None and _user(0)["content"] in text

    def _renders_late(self, role: str, answered: Sequence[Message]) -> bool:
        """Whether a system message may stand anywhere behind the first user message."""
        late, *turn = _system(1, role), _user(0), _assistant(0), _user(1)
        return all(
            self._renders(*turn[:place], late, *turn[place:]) for place in range(1, len(turn) + 1)
        ) and self._renders(_user(0), *answered, late, _assistant(0), _user(1))

    def _renders_late_results(self) -> bool:
        """Whether a result may stand behind a user, an answer or another call."""
        calls, results = [_call(_ID), _call(_OTHER_ID)], [_result(_ID), _result(_OTHER_ID)]
        rest = _assistant(1), _user(2)
        between = ([calls[0], _user(1), results[0]], [calls[0], _assistant(0), results[0]], [*calls, *results])
        return all(self._renders(_user(0), *turn, *rest) for turn in between)

    def _renders_reasoning(self, **fields: Any) -> bool:
        text = self._text([_user(0), {**_call(_ID), **fields}, _result(_ID)], self._tools)
        return text is not None and _THOUGHT in text and "'type'" not in text and '"thinking"' not in text

    def _shows(self, tool: Mapping[str, Any]) -> bool:
        text = self._text([_user(0)], [tool])
        return text is not None and _NAME in text

    def _renders(self, *messages: Message) -> bool:
        text = self._text(messages, self._tools)
        if text is None or (self._tools and _NAME not in text):
            return False
        position = 0
        for word in _words(messages):
            position = text.find(word, position)
            if position < 0:
                return False
        return ('\\"target' if self._as_text else "{'target") not in text  # JSON in JSON, or Python's spelling

    def _renders_in_any_order(self, *messages: Message) -> bool:
        """Whether all words are rendered, for messages within which a template may have its own order."""
        text = self._text(messages, self._tools)
        return text is not None and all(word in text for word in _words(messages))

    def _text(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None) -> str | None:
        """The rendered conversation, or None where the template refuses it."""
        messages = [text_arguments(message) for message in messages] if self._as_text else messages
        messages = [in_parts(message) for message in messages] if self._in_parts else messages
        try:
            return self._template.render(messages, variables={} if tools is None else {"tools": tools})
        except RequestError:
            return None


def in_parts(message: Message) -> Message:
    """The same message with its text as a list of parts."""
    content = message.get("content")
    return {**message, "content": [{"type": "text", "text": content}]} if isinstance(content, str) else message


def text_arguments(message: Message) -> Message:
    """The same message with the arguments of its calls as JSON."""
    return with_functions(message, lambda function: {**function, "arguments": spaced_json(function["arguments"])})


def with_functions(message: Message, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Message:
    """The same message with the function of each of its calls changed."""
    if not message.get("tool_calls"):
        return message
    calls = [{**call, "function": change(call["function"])} for call in message["tool_calls"]]
    return {**message, "tool_calls": calls}


def _system(number: int, role: str = "system") -> Message:
    return {"role": role, "content": f"{role} rule {number}"}


def _user(number: int) -> Message:
    return {"role": "user", "content": f"user question {number}"}


def _assistant(number: int) -> Message:
    return {"role": "assistant", "content": f"assistant answer {number}"}


def _call(*ids: str, text: str = "") -> Message:
    functions = [{"name": _CALLED, "arguments": {"target": f"place of {call_id}"}} for call_id in ids]
    calls = [
        {"id": call_id, "type": "function", "function": function}
        for call_id, function in zip(ids, functions, strict=True)
    ]
    return {"role": "assistant", "content": text, "tool_calls": calls}


def _result(call_id: str) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": f"result of {call_id}"}


def _with_long_ids(message: Message) -> Message:
    if message["role"] == "tool":
        return {**message, "tool_call_id": _LONG_IDS[message["tool_call_id"]]}
    return {**message, "tool_calls": [{**call, "id": _LONG_IDS[call["id"]]} for call in message["tool_calls"]]}


def _words(messages: Iterable[Message]) -> Iterator[str]:
    """The texts that the prompt must have, in this order."""
    for message in messages:
        if isinstance(message["content"], str):
            yield message["content"]
        for call in message.get("tool_calls", ()):
            yield call["function"]["name"]
            yield call["function"]["arguments"]["target"]
