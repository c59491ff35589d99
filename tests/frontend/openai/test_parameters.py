"""What a body asks for reaches the parameters, each field by itself; what does not go together is refused by name."""

from typing import Any

import msgspec
import pytest

from pyllm.checkpoint.generation_config import SamplingDefaults
from pyllm.errors import RequestError
from pyllm.frontend.http.ignored_fields import RequestFields
from pyllm.frontend.http.peer_fields import use_bias_by_id
from pyllm.frontend.openai.parameters import (
    num_chat_logprobs,
    sampling_params,
    scheduling_params,
    wants_continuous_usage,
    wants_usage,
)
from pyllm.frontend.openai.protocol import ChatRequest, GenerationRequest
from pyllm.frontend.openai.request_start import check_stream_options
from pyllm.frontend.requests.request_context import RequestContext
from pyllm.parameters.sampling_params import SamplingParams
from pyllm.parameters.scheduling_params import SchedulingParams
from pyllm.parameters.structured_outputs_params import StructuredOutputsParams
from tests.client.fake_core import MODEL

CONTEXT = RequestContext("0")
CHAT = {"messages": [{"role": "user", "content": "x"}]}


def decode(kind: type[GenerationRequest], body: dict[str, Any]) -> Any:
    return msgspec.json.decode(msgspec.json.encode(body), type=kind)


def params_of(request: GenerationRequest, max_tokens: int | None, logprobs: int | None = None) -> SamplingParams:
    return sampling_params(request, SamplingDefaults(), max_tokens, logprobs)


def test_sampling_fields_reach_the_parameters() -> None:
    sampling = {
        "n": 2,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.5,
        "allowed_token_ids": [5, 6],
        "bad_words": ["x"],
        "seed": 7,
        "min_tokens": 4,
        "prompt_logprobs": 2,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
    }
    others = {"stop": ["a", "b"], "stop_token_ids": [3], "logit_bias": {"7": -1}, "vllm_xargs": {"mine": {"x": 1}}}
    request = decode(ChatRequest, CHAT | sampling | others | {"structured_outputs": None})
    use_bias_by_id(request, lambda texts: [])
    expected = SamplingParams(
        **sampling,
        max_tokens=9,
        stop=("a", "b"),
        stop_token_ids=(3,),
        logit_bias={7: -1.0},
        extra_args={"mine": {"x": 1}},
        logprobs=5,
    )
    assert params_of(request, 9, 5) == expected
    assert params_of(decode(ChatRequest, CHAT | {"ignore_eos": True}), 9).ignore_eos


def test_what_is_left_out_or_null_is_neutral() -> None:
    null = dict.fromkeys(["n", "temperature", "top_p", "stop", "stop_token_ids", "seed"])
    assert params_of(decode(ChatRequest, CHAT | null), None) == SamplingParams(max_tokens=None)
    assert params_of(decode(ChatRequest, CHAT | {"stop": "x"}), None).stop == ("x",)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, StructuredOutputsParams(json_object=True)),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}, "strict": True}}},
            StructuredOutputsParams(json={}),
        ),
        ({"response_format": {"type": "json_object", "schema": {"a": 1}}}, StructuredOutputsParams(json={"a": 1})),
        ({"response_format": {"type": "json_schema", "schema": {"a": 1}}}, StructuredOutputsParams(json={"a": 1})),
        ({"format": {"a": 1}}, StructuredOutputsParams(json={"a": 1})),
        ({"format": "json"}, StructuredOutputsParams(json_object=True)),
        ({"format": "", "structured_outputs": {"json_object": True}}, StructuredOutputsParams(json_object=True)),
        ({"structured_outputs": {"json": {"type": "array"}}}, StructuredOutputsParams(json={"type": "array"})),
        ({"structured_outputs": {"json": "{}"}}, StructuredOutputsParams(json="{}")),
        ({"structured_outputs": {"regex": "a+"}}, StructuredOutputsParams(regex="a+")),
        ({"structured_outputs": {"choice": ["a"]}}, StructuredOutputsParams(choice=["a"])),
        ({"structured_outputs": {"grammar": "start: /a/"}}, StructuredOutputsParams(grammar="start: /a/")),
        (
            {"response_format": {"type": "text"}, "structured_outputs": {"json_object": True}},
            StructuredOutputsParams(json_object=True),
        ),
    ],
)
def test_forms_of_the_output_reach_the_parameters(body: dict[str, Any], expected: StructuredOutputsParams) -> None:
    assert params_of(decode(ChatRequest, CHAT | body), None).structured_outputs == expected


def test_beams_are_as_many_as_answers() -> None:
    params = params_of(decode(ChatRequest, CHAT | {"use_beam_search": True, "n": 3, "length_penalty": 2}), 9)
    assert (params.beam_width, params.n, params.length_penalty) == (3, 3, 2.0)
    assert params_of(decode(ChatRequest, CHAT | {"use_beam_search": True}), 9).beam_width == 1
    assert params_of(decode(ChatRequest, CHAT | {"use_beam_search": False, "length_penalty": 1}), 9).beam_width == 0


@pytest.mark.parametrize(
    ("body", "parameter"),
    [
        ({"prompt_logprobs": 0, "stream": True}, "prompt_logprobs"),
        ({"use_beam_search": True, "stream": True}, "use_beam_search"),
        ({"use_beam_search": True, "stop": "x"}, "stop"),
        ({"length_penalty": 2}, "length_penalty"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"schema": {}}}, "response_format.schema"),
        (
            {"response_format": {"type": "json_schema", "schema": {}, "json_schema": {"schema": {}}}},
            "response_format.schema",
        ),
        ({"response_format": {"type": "text"}, "format": "json"}, "format"),
        ({"structured_outputs": {"regex": "a"}, "format": {"type": "object"}}, "format"),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            "response_format",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(body: dict[str, Any], parameter: str) -> None:
    with pytest.raises(RequestError) as refused:
        params_of(decode(ChatRequest, CHAT | body), None)
    assert refused.value.parameter == parameter


def test_a_chat_says_whether_and_how_many_log_probabilities() -> None:
    model = MODEL

    def number(**body: object) -> int | None:
        return num_chat_logprobs(decode(ChatRequest, CHAT | body), model)

    assert (number(), number(logprobs=False, top_logprobs=0), number(logprobs=True)) == (None, None, 0)
    assert number(logprobs=True, top_logprobs=5) == 5
    with pytest.raises(RequestError, match="logprobs: true"):
        number(top_logprobs=5)
    with pytest.raises(RequestError, match=r"top_logprobs must be from -1 \(all\) to 20 \(--max-logprobs\), got 21"):
        number(logprobs=True, top_logprobs=21)
    with pytest.raises(RequestError, match=r"at most 20 come: start the engine with --max-logprobs -1"):
        number(logprobs=True, top_logprobs=-1)
    model = msgspec.structs.replace(MODEL, max_logprobs=MODEL.vocab_size)
    assert number(logprobs=True, top_logprobs=-1) == MODEL.vocab_size


def test_an_older_name_of_a_form_passes_beside_an_equal_one() -> None:
    schema = {"type": "object"}
    for name, value in {"json": schema, "regex": "a+", "choice": ["a", "b"], "grammar": 'start: "a"'}.items():
        both = {f"guided_{name}": value, "structured_outputs": {name: value}}
        assert params_of(decode(ChatRequest, CHAT | both), 9).structured_outputs is not None
        for other in ({}, {"structured_outputs": {"json_object": True}}):
            with pytest.raises(RequestError, match=f"guided_{name} is not supported; use structured_outputs.{name}"):
                params_of(decode(ChatRequest, CHAT | {f"guided_{name}": value} | other), 9)


def test_an_older_schema_may_be_a_text_or_equal_to_the_response_format() -> None:
    schema = {"type": "object"}
    response_format = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    text = msgspec.json.encode(schema).decode()
    for newer in ({"structured_outputs": {"json": schema}}, {"response_format": response_format}):
        assert params_of(decode(ChatRequest, CHAT | {"guided_json": text} | newer), 9).structured_outputs
    with pytest.raises(RequestError, match="guided_json"):
        params_of(decode(ChatRequest, CHAT | {"guided_json": "{", "structured_outputs": {"json": schema}}), 9)


def test_scheduling_fields_reach_the_parameters_but_the_tenant_does_not() -> None:
    fields = {"priority": -3, "timeout": 2, "ttft_target": 0.5, "tpot_target": 0.05}
    request = decode(ChatRequest, CHAT | fields)
    assert scheduling_params(request, CONTEXT, MODEL) == SchedulingParams(
        priority=-3, timeout=2.0, ttft_target=0.5, tpot_target=0.05, tenant="", name=CONTEXT.request_id
    )
    plain = SchedulingParams(name=CONTEXT.request_id)
    null = decode(ChatRequest, CHAT | dict.fromkeys(fields))
    assert scheduling_params(null, CONTEXT, MODEL) == plain
    assert scheduling_params(decode(ChatRequest, CHAT), CONTEXT, MODEL) == plain
    named = decode(ChatRequest, CHAT | {"tenant": "somebody else"})
    assert scheduling_params(named, CONTEXT, MODEL) == plain


@pytest.mark.parametrize(
    ("given", "retention", "ignored_without_store"),
    [
        (None, "default", []),
        ("in_memory", "none", []),
        ("in-memory", "none", []),
        ("24h", "long", ["prompt_cache_retention"]),
    ],
)
def test_openais_retention_is_that_of_the_store_and_told_where_it_has_no_effect(
    given: str | None, retention: str, ignored_without_store: list[str]
) -> None:
    request = decode(ChatRequest, CHAT | {"prompt_cache_retention": given})
    for model, ignored in ((msgspec.structs.replace(MODEL, saves_kv_blocks=True), []), (MODEL, ignored_without_store)):
        for policy in ("warn", "refuse"):
            context = RequestContext("0", fields=RequestFields(policy))
            assert scheduling_params(request, context, model).kv_cache_retention == retention
            assert [name for name, _ in context.fields.names] == (ignored if policy == "warn" else [])


def test_a_retention_that_openai_does_not_have_is_refused_with_those_it_has() -> None:
    request = decode(ChatRequest, CHAT | {"prompt_cache_retention": "7d"})
    with pytest.raises(RequestError, match="prompt_cache_retention must be in_memory or 24h, got 7d") as refused:
        scheduling_params(request, CONTEXT, MODEL)
    assert refused.value.parameter == "prompt_cache_retention"


def test_usage_is_an_option_of_streams() -> None:
    assert not wants_usage(decode(ChatRequest, CHAT))
    assert not wants_usage(decode(ChatRequest, CHAT | {"stream": True, "stream_options": {}}))
    assert wants_usage(decode(ChatRequest, CHAT | {"stream": True, "stream_options": {"include_usage": True}}))
    with pytest.raises(RequestError, match="stream: true"):
        check_stream_options(decode(ChatRequest, CHAT | {"stream_options": {"include_usage": True}}))
    obfuscated = {"include_usage": True, "include_obfuscation": True}
    assert wants_usage(decode(ChatRequest, CHAT | {"stream": True, "stream_options": obfuscated}))


def test_continuous_usage_goes_with_the_usage_at_the_end() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    assert wants_continuous_usage(decode(ChatRequest, CHAT | {"stream": True, "stream_options": options}))
    assert not wants_continuous_usage(decode(ChatRequest, CHAT | {"stream": True}))
    only = CHAT | {"stream": True, "stream_options": {"continuous_usage_stats": True}}
    with pytest.raises(RequestError, match="include_usage: true"):
        check_stream_options(decode(ChatRequest, only))


def test_defaults_hold_where_a_request_leaves_them_out_and_bound_its_tokens() -> None:
    defaults = SamplingDefaults(temperature=0.2, top_p=0.9, max_tokens=50)
    left_out = sampling_params(decode(ChatRequest, CHAT), defaults, None)
    assert (left_out.temperature, left_out.top_p, left_out.top_k, left_out.max_tokens) == (0.2, 0.9, 0, 50)
    given = sampling_params(decode(ChatRequest, CHAT | {"temperature": 0, "top_p": 1}), defaults, 60)
    assert (given.temperature, given.top_p, given.max_tokens) == (0.0, 1.0, 50)
    assert sampling_params(decode(ChatRequest, CHAT), defaults, 7).max_tokens == 7
    beams = sampling_params(decode(ChatRequest, CHAT | {"use_beam_search": True, "n": 2}), defaults, None)
    assert (beams.top_p, beams.max_tokens) == (1.0, 50)
