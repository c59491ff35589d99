"""Every known field is honoured, without effect, or passes at its neutral value and is refused by name otherwise."""

from typing import Annotated, Any

import msgspec
import pytest

from pyllm.errors import RequestError
from pyllm.frontend.http.body_shape import find_ignored
from pyllm.frontend.http.ignored_fields import RequestFields
from pyllm.frontend.http.unsupported import Unsupported, refuse_unsupported
from pyllm.frontend.openai.protocol import ChatRequest, CompletionRequest, GenerationRequest

COMPLETION = {"prompt": "x"}
CHAT = {"messages": [{"role": "user", "content": "x"}]}
SHARED = {
    "best_of": (1, 3),
    "structural_tag": (None, "x"),
    "spaces_between_special_tokens": (True, False),
    "regex": (None, "x"),
    "typical_p": (1.0, 0.5),
    "return_hidden_states": (False, True),
    "prompt_logprob_token_ids": ([], [1]),
    "kv_transfer_params": ({}, {"a": 1}),
}
COMPLETION_ONLY = {"tools": ([], [{}]), "prompt_embeds": (None, "x")}
CHAT_ONLY = {
    "echo": (False, True),
    "functions": ([], [{}]),
    "function_call": ("none", "auto"),
    "modalities": (["text"], ["text", "audio"]),
}
CASES = [
    *((CompletionRequest, COMPLETION, name, *values) for name, values in (SHARED | COMPLETION_ONLY).items()),
    *((ChatRequest, CHAT, name, *values) for name, values in (SHARED | CHAT_ONLY).items()),
]


def decode(kind: type[GenerationRequest], body: dict[str, Any]) -> Any:
    return msgspec.json.decode(msgspec.json.encode(body), type=kind)


@pytest.mark.parametrize(("kind", "body", "name", "neutral", "other"), CASES)
def test_an_unsupported_field_passes_at_its_neutral_value_only(
    kind: type[GenerationRequest], body: dict[str, Any], name: str, neutral: object, other: object
) -> None:
    refuse_unsupported(decode(kind, body))
    refuse_unsupported(decode(kind, {**body, name: neutral}))
    refuse_unsupported(decode(kind, {**body, name: None}))
    with pytest.raises(RequestError, match=f"^{name} is not supported") as refused:
        refuse_unsupported(decode(kind, {**body, name: other}))
    assert refused.value.parameter == name


@pytest.mark.parametrize(
    ("name", "value", "instead"),
    [
        ("functions", [{}], "tools"),
        ("function_call", {"name": "f"}, "tool_choice"),
        ("ebnf", "x", "structured_outputs"),
        ("guided_whitespace_pattern", "x", "structured_outputs"),
    ],
)
def test_what_has_a_newer_name_is_refused_with_it(name: str, value: object, instead: str) -> None:
    with pytest.raises(RequestError, match=f"^{name} is not supported; use {instead}$"):
        refuse_unsupported(decode(ChatRequest, {**CHAT, name: value}))


def test_only_the_mark_of_an_unsupported_field_makes_it_one() -> None:
    class Request(msgspec.Struct):
        limit: Annotated[int, msgspec.Meta(ge=0)] = 0
        size: Annotated[int, msgspec.Meta(extra={"unit": "byte"})] = 0
        later: Unsupported[int] = 0

    refuse_unsupported(Request(limit=5, size=5))
    with pytest.raises(RequestError, match="later is not supported"):
        refuse_unsupported(Request(later=5))


@pytest.mark.parametrize(("kind", "body"), [(CompletionRequest, COMPLETION), (ChatRequest, CHAT)])
def test_what_has_no_effect_anywhere_is_accepted(kind: type[GenerationRequest], body: dict[str, Any]) -> None:
    harmless = {"user": "me", "store": True, "metadata": {"a": "b"}, "prompt_cache_key": "k", "service_tier": "auto"}
    harmless |= {"safety_identifier": "s"}
    strict = RequestFields("refuse")
    for value in (*harmless.values(), 5, [], {"type": "of another time"}):
        odd = body | {name: value for name in harmless if name not in {"user", "prompt_cache_key"}}
        refuse_unsupported(decode(kind, odd))
        find_ignored(msgspec.json.encode(odd), kind, strict)


@pytest.mark.parametrize(("kind", "body"), [(CompletionRequest, COMPLETION), (ChatRequest, CHAT)])
def test_unknown_fields_decode_and_are_told(kind: type[GenerationRequest], body: dict[str, Any]) -> None:
    misspelt = body | {"temprature": 1}
    assert decode(kind, misspelt) == decode(kind, body)
    fields = RequestFields()
    find_ignored(msgspec.json.encode(misspelt), kind, fields)
    assert [name for name, _ in fields.names] == ["temprature"]
    with pytest.raises(RequestError, match="temprature is not a known field") as refused:
        find_ignored(msgspec.json.encode(misspelt), kind, RequestFields("refuse"))
    assert refused.value.parameter == "temprature"


def test_types_are_strict() -> None:
    for wrong in ({"max_tokens": "5"}, {"max_tokens": 5.5}, {"stream": "true"}, {"stop": 5}, {"n": True}):
        with pytest.raises(msgspec.ValidationError, match=min(wrong)):
            decode(CompletionRequest, COMPLETION | wrong)
