"""Every known field is honoured, accepted at its neutral value, or refused by name; unknown ones are refused too."""

from typing import Annotated, Any

import msgspec
import pytest

from pyllm.errors import RequestError
from pyllm.frontend.openai.protocol import (
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    Unsupported,
    refuse_unsupported,
    sampling_params,
    scheduling_params,
    wants_usage,
)
from pyllm.sampling_params import SamplingParams
from pyllm.scheduling_params import SchedulingParams

COMPLETION = {"prompt": "x"}
CHAT = {"messages": [{"role": "user", "content": "x"}]}
SHARED = {
    "frequency_penalty": (0, 0.5),
    "presence_penalty": (0, -1),
    "repetition_penalty": (1, 1.1),
    "length_penalty": (1.0, 2),
    "logit_bias": ({}, {"5": 1}),
    "allowed_token_ids": (None, [1]),
    "bad_words": ([], ["x"]),
    "min_tokens": (0, 1),
    "echo": (False, True),
    "use_beam_search": (False, True),
    "prompt_logprobs": (None, 0),
    "spaces_between_special_tokens": (True, False),
    "truncate_prompt_tokens": (None, 5),
    "response_format": ({"type": "text"}, {"type": "json_object"}),
    "structured_outputs": (None, {"regex": "x"}),
    "guided_json": (None, {}),
    "guided_regex": (None, "x"),
    "cache_salt": (None, "salt"),
    "return_token_ids": (False, True),
    "kv_transfer_params": (None, {}),
}
COMPLETION_ONLY = {"best_of": (1, 2), "logprobs": (None, 0), "suffix": (None, "x"), "prompt_embeds": (None, "x")}
CHAT_ONLY = {
    "logprobs": (False, True),
    "top_logprobs": (0, 1),
    "tools": ([], [{"type": "function"}]),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([], [{}]),
    "modalities": (["text"], ["text", "audio"]),
    "reasoning_effort": (None, "low"),
    "chat_template": (None, "x"),
    "chat_template_kwargs": ({}, {"x": 1}),
    "documents": ([], [{}]),
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
    refuse_unsupported(decode(kind, body | harmless | {"safety_identifier": "s"}))
    with pytest.raises(msgspec.ValidationError, match="service_tier"):
        decode(kind, body | {"service_tier": "priority"})


@pytest.mark.parametrize(("kind", "body"), [(CompletionRequest, COMPLETION), (ChatRequest, CHAT)])
def test_unknown_fields_are_refused(kind: type[GenerationRequest], body: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field `temprature`"):
        decode(kind, body | {"temprature": 1})


def test_types_are_strict() -> None:
    for wrong in ({"max_tokens": "5"}, {"max_tokens": 5.5}, {"stream": "true"}, {"stop": 5}, {"n": True}):
        with pytest.raises(msgspec.ValidationError, match=min(wrong)):
            decode(CompletionRequest, COMPLETION | wrong)


def test_sampling_fields_reach_the_parameters() -> None:
    sampling = {
        "n": 2,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "seed": 7,
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
    }
    request = decode(ChatRequest, CHAT | sampling | {"stop": ["a", "b"], "stop_token_ids": [3]})
    expected = SamplingParams(**sampling, max_tokens=9, stop=("a", "b"), stop_token_ids=(3,))
    assert sampling_params(request, 9) == expected


def test_what_is_left_out_or_null_is_neutral() -> None:
    null = dict.fromkeys(["n", "temperature", "top_p", "stop", "stop_token_ids", "seed"])
    assert sampling_params(decode(ChatRequest, CHAT | null), None) == SamplingParams()
    assert sampling_params(decode(ChatRequest, CHAT | {"stop": "x"}), None).stop == ("x",)


def test_scheduling_fields_reach_the_parameters_but_the_tenant_does_not() -> None:
    fields = {"priority": -3, "timeout": 2, "ttft_target": 0.5, "tpot_target": 0.05}
    request = decode(ChatRequest, CHAT | fields)
    assert scheduling_params(request) == SchedulingParams(
        priority=-3, timeout=2.0, ttft_target=0.5, tpot_target=0.05, tenant=""
    )
    null = decode(ChatRequest, CHAT | dict.fromkeys(fields))
    assert scheduling_params(null) == scheduling_params(decode(ChatRequest, CHAT)) == SchedulingParams()
    with pytest.raises(msgspec.ValidationError, match="unknown field `tenant`"):
        decode(ChatRequest, CHAT | {"tenant": "somebody else"})


def test_usage_is_an_option_of_streams() -> None:
    assert not wants_usage(decode(ChatRequest, CHAT))
    assert not wants_usage(decode(ChatRequest, CHAT | {"stream": True, "stream_options": {}}))
    assert wants_usage(decode(ChatRequest, CHAT | {"stream": True, "stream_options": {"include_usage": True}}))
    with pytest.raises(RequestError, match="stream: true"):
        wants_usage(decode(ChatRequest, CHAT | {"stream_options": {"include_usage": True}}))
    with pytest.raises(RequestError, match=r"stream_options.continuous_usage_stats is not supported"):
        wants_usage(decode(ChatRequest, CHAT | {"stream": True, "stream_options": {"continuous_usage_stats": True}}))
