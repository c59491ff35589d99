"""Shapes of conversations that programs send, each with words of its own, and what of them must be in a prompt."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from pyllm.frontend.chat.template_traits import TemplateTraits

Message = dict[str, Any]

# What `pyllm-adjusted-messages` may name.
ADJUSTMENTS = tuple(name for name in ("call_order", *TemplateTraits.__struct_fields__) if name != "no_tools")

FIRST, SECOND = "call_0f1e2d3c4b5a69788796a5b4", "toolu_01A09q90qw90lq917835lq9"
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "find_weather",
        "description": "It finds the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
# With what many programs leave out.
BARE_TOOL: dict[str, Any] = {"type": "function", "function": {"name": "ring_bell", "parameters": {"type": "object"}}}


def system(text: str = "the first rule", role: str = "system") -> Message:
    return {"role": role, "content": text}


def user(text: str = "the first question") -> Message:
    return {"role": "user", "content": text}


def assistant(text: str = "the first answer") -> Message:
    return {"role": "assistant", "content": text}


def calls(*ids: str, text: str = "", arguments: dict[str, Any] | None = None) -> Message:
    """A message of the assistant's with a call for each id."""
    made = [
        {
            "id": call_id,
            "type": "function",
            "function": {"name": "find_weather", "arguments": arguments or {"city": f"town {call_id[-5:]}"}},
        }
        for call_id in ids
    ]
    return {"role": "assistant", "content": text, "tool_calls": made}


def result(call_id: str) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": f"sun over {call_id[-5:]}"}


SHAPES: dict[str, list[Message]] = {
    "system": [system(), user()],
    "developer": [system("a wish", "developer"), user()],
    "system and developers": [system(), system("a wish", "developer"), system("a hope", "developer"), user()],
    "late system": [system(), user(), assistant(), system("a late rule"), user("more")],
    "late system at the end": [system(), user(), assistant(), user("more"), system("a late rule")],
    "late system before any answer": [user(), system("a late rule"), user("more")],
    "late system behind a result": [system(), user(), calls(FIRST), result(FIRST), system("a late rule")],
    "two systems": [system(), system("the second rule"), user()],
    "two users": [system(), user(), user("more")],
    "two assistants": [user(), assistant(), assistant("the second answer"), user("more")],
    "assistant first": [assistant("welcome"), user()],
    "system, assistant first": [system(), assistant("welcome"), user()],
    "no user": [system()],
    "one call": [system(), user(), calls(FIRST), result(FIRST)],
    "one call, answered": [system(), user(), calls(FIRST), result(FIRST), assistant(), user("more")],
    "two calls": [system(), user(), calls(FIRST, SECOND), result(SECOND), result(FIRST)],
    "two calls, answered": [
        *(user(), calls(FIRST, SECOND), result(SECOND), result(FIRST)),
        *(assistant(), user("more")),
    ],
    "text and call": [system(), user(), calls(FIRST, text="let us see"), result(FIRST)],
    "text and calls": [
        *(user(), calls(FIRST, SECOND, text="let us see"), result(FIRST), result(SECOND)),
        *(assistant(), user("more")),
    ],
    "result and user": [user(), calls(FIRST), result(FIRST), user("more")],
    "result, user, late system": [
        *(system(), user(), calls(FIRST), result(FIRST), user("more")),
        *(system("a late rule"), user("and more")),
    ],
    "unanswered call": [user(), calls(FIRST), user("more")],
    "late result": [user(), calls(FIRST), user("more"), result(FIRST), assistant(), user("and more")],
    "result behind an answer": [user(), calls(FIRST), assistant(), result(FIRST), user("more")],
    "result behind a system message": [user(), calls(FIRST), system("a late rule"), result(FIRST), user("more")],
    "results apart": [
        user(),
        calls(FIRST, SECOND),
        result(FIRST),
        user("more"),
        result(SECOND),
        assistant(),
        user("x"),
    ],
    "calls in two messages": [
        *(user(), calls(FIRST), calls(SECOND), result(FIRST), result(SECOND)),
        *(assistant(), user("more")),
    ],
    "system, result and user": [system(), user(), calls(FIRST), result(FIRST), user("more")],
    "one id twice": [user(), calls(FIRST, FIRST), result(FIRST), result(FIRST), assistant(), user("more")],
    "empty answer": [user(), assistant(""), user("more")],
    "empty answer at the end": [system(), user(), assistant("")],
    "result alone": [user(), result(FIRST), assistant(), user("more")],
    "loop": [
        *(system(), user(), calls(FIRST), result(FIRST)),
        *(calls(SECOND, text="and now"), result(SECOND)),
    ],
    "broken arguments": [user(), calls(FIRST, arguments={"INVALID_JSON": '{"city": "Ro'}), result(FIRST)],
}


def as_sent(messages: Sequence[Message]) -> list[Message]:
    """The messages as OpenAI's clients send them, arguments as a text."""
    return [
        {
            **message,
            "tool_calls": [
                {**call, "function": {**call["function"], "arguments": text_of(call["function"]["arguments"])}}
                for call in message["tool_calls"]
            ],
        }
        if "tool_calls" in message
        else message
        for message in messages
    ]


def text_of(arguments: dict[str, str]) -> str:
    return arguments.get("INVALID_JSON") or json.dumps(arguments)


def words(messages: Sequence[Message]) -> Iterator[tuple[str, ...]]:
    """Each word that a prompt must have, in the spellings that a template may have for it."""
    for message in messages:
        if message["content"]:
            yield (message["content"],)
        for call in message.get("tool_calls", ()):
            yield (call["function"]["name"],)
            for value in call["function"]["arguments"].values():
                yield spellings(value)


def spellings(text: str) -> tuple[str, ...]:
    """A text as it is, in JSON, and in JSON in JSON."""
    in_json = json.dumps(text, ensure_ascii=False)
    return text, in_json[1:-1], json.dumps(in_json, ensure_ascii=False)[3:-3]


def missing(messages: Sequence[Message], tools: Sequence[dict[str, Any]], prompt: str) -> list[str]:
    """What of a conversation and its tools a prompt lacks."""
    named = [(tool["function"]["name"],) for tool in tools]
    return [spellings[0] for spellings in (*words(messages), *named) if not any(each in prompt for each in spellings)]
