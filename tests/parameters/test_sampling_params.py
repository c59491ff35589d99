import re
from typing import Any

import numpy as np
import pytest

from pyllm import RequestOutputKind, SamplingParams, StructuredOutputsParams
from pyllm.errors import RequestError
from pyllm.parameters.sampling_params import arguments_by_plugin
from pyllm.parameters.vllm_parameters import SAMPLING


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 0),
        ("n", 16_385),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("top_k", 2**31),
        ("top_k", 2**64),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("max_tokens", -1),
        ("max_tokens", -5),
        ("seed", 2**64),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop_token_ids", (-1,)),
        ("stop_token_ids", (2**31,)),
    ],
)
def test_values_out_of_range_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(RequestError, match=name) as refused:
        SamplingParams(**{name: value})
    assert refused.value.parameter == name


@pytest.mark.parametrize(
    ("keywords", "text"),
    [
        ({"max_token": 3}, "SamplingParams has no 'max_token': did you mean 'max_tokens'?"),
        ({"temprature": 1}, "SamplingParams has no 'temprature': did you mean 'temperature'?"),
        ({"max_new_tokens": 1, "zzz": 1}, "no 'max_new_tokens': it is max_tokens here; SamplingParams has no 'zzz'"),
        ({"num_predict": 1}, "it is max_tokens here"),
        ({"sampling_seed": 1}, "it is seed here"),
        ({"use_beam_search": True}, "it is beam_width here"),
        ({"early_stopping": True}, "it is beam_width here"),
        ({"typical_p": 0.9}, "it is min_p, the nearest sampler here"),
        ({"stopping_strings": ["x"]}, "it is stop here"),
        ({"suppress_tokens": [5]}, "it is bad_words_token_ids here"),
        ({"do_sample": False}, "it is temperature, where 0 is greedy here"),
        ({"repeat_penalty": 1.1}, "it is repetition_penalty here"),
    ],
)
def test_a_name_that_there_is_not_is_told_what_was_meant(keywords: dict[str, Any], text: str) -> None:
    with pytest.raises(RequestError, match=re.escape(text)) as refused:
        SamplingParams(**keywords)
    assert refused.value.parameter == next(iter(keywords))
    assert isinstance(refused.value, TypeError)  # as Python has it
    with pytest.raises(TypeError, match="positional"):
        SamplingParams(1)  # type: ignore[misc]


def test_no_tokens_may_be_asked_for_but_of_beams() -> None:
    assert SamplingParams(max_tokens=0).max_tokens == 0
    with pytest.raises(RequestError, match="max_tokens must be at least 0, got -1"):
        SamplingParams(max_tokens=-1)
    with pytest.raises(RequestError, match="max_tokens must be at least 1, got 0"):
        SamplingParams(max_tokens=0, n=2, beam_width=2)


def test_stop_is_a_string_or_several() -> None:
    assert SamplingParams(stop="end").stop_strings == ("end",)
    assert SamplingParams(stop=["a", "b"], stop_token_ids=[2]).stop_strings == ("a", "b")


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        (["x"] * 1025, "stop must be at most 1024 strings, got 1025"),
        ("x" * 1025, "stop must be strings of at most 1024 characters each, got 1025"),
        (["x" * 1000] * 66, "stop must be at most 65536 characters together, got 66000"),
    ],
)
def test_stop_strings_have_their_bounds(stop: str | list[str], text: str) -> None:
    with pytest.raises(RequestError) as refused:
        SamplingParams(stop=stop)
    assert (str(refused.value), refused.value.parameter) == (text, "stop")


def test_as_many_stop_strings_as_the_bounds_allow() -> None:
    for stop in (["x" * 64] * 1024, ["🙂" * 1024] * 64):
        assert SamplingParams(stop=stop).stop_strings == tuple(stop)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in ("presence_penalty", "frequency_penalty") for value in (-2.1, 2.1, float("nan"))),
        *(
            ("repetition_penalty", value)
            for value in (0.0, 1e-50, 0.0099, -1.0, 100.1, 1e39, float("inf"), float("nan"))
        ),
        ("logit_bias", dict.fromkeys(range(1025), 1.0)),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {"5": 1.0}),
        ("logit_bias", {5: float("nan")}),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [2**31]),
        ("bad_words", ["x"] * 129),
        ("bad_words", [""]),
        ("bad_words", "word"),
        ("bad_words", ["x" * 4097]),
        ("bad_words_token_ids", [[1]] * 65537),
        ("bad_words_token_ids", [[]]),
        ("bad_words_token_ids", [[-1]]),
        ("thinking_token_budget", -2),
        ("thinking_token_budget", 2**31),
        ("thinking_token_budget", 1.5),
        ("reasoning_start_token_ids", [5]),
        ("reasoning_end_token_ids", [[5], []]),
        ("reasoning_end_token_ids", [[-1]]),
        ("min_tokens", -1),
        ("logprobs", -2),
        ("prompt_logprobs", -2),
        ("logprob_token_ids", [1] * 129),
        ("logprob_token_ids", [-1]),
        ("beam_width", -1),
        *(("length_penalty", value) for value in (float("nan"), 1e300, -10.1)),
        ("length_penalty", 2.0),
    ],
)
def test_what_changes_logits_and_ends_has_its_bounds(name: str, value: object) -> None:
    with pytest.raises(RequestError, match=f"^{name} ") as refused:
        SamplingParams(**{name: value})
    assert refused.value.parameter == name


def test_tokens_are_named_in_place_of_the_likeliest() -> None:
    assert SamplingParams(logprob_token_ids=[5, 6], logprobs=2).num_logprobs == 2
    assert SamplingParams(logprob_token_ids=[], logprobs=3).num_logprobs == 3
    assert SamplingParams().num_logprobs is None
    with pytest.raises(RequestError, match="are 2, which come in place of the 3 likeliest") as refused:
        SamplingParams(logprob_token_ids=[5, 6], logprobs=3)
    assert refused.value.parameter == "logprobs"


def test_bounds_themselves_are_allowed() -> None:
    for value in (-2.0, 2.0):
        SamplingParams(presence_penalty=value, frequency_penalty=value)
    for value in (0.01, 100.0):
        SamplingParams(repetition_penalty=value)
    for value in (-10.0, 10.0):
        SamplingParams(beam_width=2, n=2, length_penalty=value)
    SamplingParams(logit_bias=dict.fromkeys(range(1024), 1.0))
    SamplingParams(bad_words=["x"] * 128, bad_words_token_ids=[[1]] * 256, logprobs=0)
    SamplingParams(min_tokens=5, max_tokens=5)
    with pytest.raises(RequestError, match="min_tokens must be at most max_tokens, 5, got 6"):
        SamplingParams(min_tokens=6, max_tokens=5)


def test_the_end_of_a_form_ends_the_output() -> None:
    form = StructuredOutputsParams(regex="a+")
    SamplingParams(structured_outputs=form, stop="a", logit_bias={5: 1.0}, logprobs=1)
    for others in ({"ignore_eos": True}, {"min_tokens": 1}):
        with pytest.raises(RequestError, match="structured_outputs exclude one another") as refused:
            SamplingParams(structured_outputs=form, **others)
        assert refused.value.parameter in others


def test_the_end_of_reasoning_cannot_be_forced_where_other_code_chooses() -> None:
    for others in ({"allowed_token_ids": [5]}, {"extra_args": {"mine": {}}}):
        SamplingParams(thinking_token_budget=-1, **others)
        with pytest.raises(RequestError, match="thinking_token_budget exclude one another") as refused:
            SamplingParams(thinking_token_budget=5, **others)
        assert refused.value.parameter in others


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top_p", 0.5),
        ("top_k", 1),
        ("min_p", 0.1),
        ("presence_penalty", 1.0),
        ("frequency_penalty", 1.0),
        ("repetition_penalty", 1.1),
        ("logit_bias", {1: 1.0}),
        ("allowed_token_ids", [1]),
        ("bad_words", ["x"]),
        ("bad_words_token_ids", [[1]]),
        ("structured_outputs", StructuredOutputsParams(json_object=True)),
        ("extra_args", {"mine": {}}),
        ("thinking_token_budget", 0),
        ("stop", "x"),
        ("logprobs", 1),
        ("prompt_logprobs", 1),
        ("logprob_token_ids", [1]),
    ],
)
def test_beam_search_excludes_what_changes_its_candidates(name: str, value: object) -> None:
    with pytest.raises(RequestError, match=f"^{name} and beam_width exclude") as refused:
        SamplingParams(beam_width=2, n=2, **{name: value})
    assert refused.value.parameter == name


def test_beam_search_goes_with_what_it_can_honour() -> None:
    neutral = {"top_k": -1, "logit_bias": {}, "bad_words": [], "stop": [], "thinking_token_budget": -1}
    for options in ({"temperature": 0.0}, {"temperature": 1.0, "seed": 1}, {"min_tokens": 3, "ignore_eos": True}):
        SamplingParams(beam_width=2, n=2, length_penalty=0.5, stop_token_ids=[3], **options, **neutral)
    with pytest.raises(RequestError, match="n must be the beam_width, 2"):
        SamplingParams(beam_width=2)


def test_defaults_are_vllms() -> None:
    nothing = ("stop", "stop_token_ids", "bad_words", "bad_words_token_ids", "reasoning_start_token_ids")
    params = SamplingParams(**dict.fromkeys(nothing))
    assert (params.max_tokens, params.stop_strings, params.detokenize) == (16, (), True)
    assert params.output_kind is RequestOutputKind.CUMULATIVE
    assert SamplingParams(logprobs=True, prompt_logprobs=True).logprobs == 1  # type: ignore[arg-type]  # as in vLLM


def test_numbers_of_numpy_become_pythons() -> None:
    params = SamplingParams(
        n=np.int64(2),
        max_tokens=np.int32(5),
        temperature=np.float32(0.5),
        ignore_eos=np.bool_(True),
        stop_token_ids=np.array([3, 4]),
        allowed_token_ids=[np.int64(7)],
        bad_words_token_ids=[np.array([1, 2])],
        logit_bias={np.int64(5): np.float64(1.5)},
    )
    assert (params.n, params.max_tokens, params.temperature, params.ignore_eos) == (2, 5, 0.5, True)
    assert (params.stop_token_ids, params.allowed_token_ids, params.bad_words_token_ids) == ([3, 4], [7], [[1, 2]])
    kinds = {type(each) for each in (params.n, params.max_tokens, *params.stop_token_ids, *params.logit_bias)}  # type: ignore[misc]
    assert kinds == {int}
    assert {type(params.temperature), type(params.logit_bias[5])} == {float}  # type: ignore[index]


WRONG_TYPES = {
    **dict.fromkeys(("n", "top_k", "min_tokens", "max_tokens", "seed"), ("5", 1.5, True, [1], float("nan"))),
    **dict.fromkeys(("temperature", "top_p", "min_p", "repetition_penalty"), ("0.5", None, True, [0.5], 10**400)),
    **dict.fromkeys(("ignore_eos", "detokenize", "skip_special_tokens"), ("yes", 1, None)),
    **dict.fromkeys(("stop_token_ids", "allowed_token_ids"), (5, "a", ["a"], [1.5], [True], b"ab")),
    **dict.fromkeys(("logprobs", "prompt_logprobs"), ("5", False, 1.5)),
    "stop": (5, [5], b"a", [None]),
    "bad_words": ("word", [5]),
    "logit_bias": ([1], {"5": 1.0}, {5: "1"}, {5: None}),
    "structured_outputs": ({"json": {}}, "a"),
    "extra_args": ([1], {5: "mine"}),
    "output_kind": (1, "DELTA"),
    "stream_interval": (0, -1, "2"),
    "truncate_prompt_tokens": (0, -2, "5"),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG_TYPES.items() for value in values])
def test_other_types_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=rf"^{name}\b.* must be .*got") as refused:
        SamplingParams(**{name: value})
    assert refused.value.parameter == name
    params = SamplingParams()
    setattr(params, name, value)
    with pytest.raises(RequestError, match=name):
        params.validate()


@pytest.mark.parametrize("name", SAMPLING)
def test_what_has_one_value_here_is_refused_otherwise_with_what_to_use(name: str) -> None:
    values, instead = SAMPLING[name]
    for value in values:
        SamplingParams(**{name: value})
    assert SamplingParams() == SamplingParams(**{name: values[0]})
    for value in (7, "x", [5], object()):
        with pytest.raises(
            RequestError, match=rf"^{name} can only be .* here, got .*: {re.escape(instead)}$"
        ) as refused:
            SamplingParams(**{name: value})
        assert refused.value.parameter == name


def test_stop_strings_need_text() -> None:
    with pytest.raises(RequestError, match="leave detokenize out"):
        SamplingParams(detokenize=False, stop="a")


@pytest.mark.parametrize(
    ("arguments", "plugins", "expected"),
    [
        ({}, ["even"], {}),
        ({"even": {"limit": 3}}, ["even", "odd"], {"even": {"limit": 3}}),
        ({"even": 3, "odd": [1]}, ["even", "odd"], {"even": 3, "odd": [1]}),
        ({"target_token": 67, "strict": None}, ["even"], {"even": {"target_token": 67, "strict": None}}),
    ],
)
def test_arguments_go_to_a_plugin(arguments: dict[str, Any], plugins: list[str], expected: dict[str, Any]) -> None:
    assert arguments_by_plugin(arguments, plugins) == expected


@pytest.mark.parametrize(
    ("arguments", "plugins", "text"),
    [
        ({"third": {}}, ["even"], "there is no logits processor or sampler 'third'; installed are even"),
        ({"target_token": 67}, [], "gets target_token is not clear; installed are none"),
        ({"target_token": 67}, ["even", "odd"], "gets target_token is not clear; installed are even, odd"),
        ({"target_token": 67, "even": {}}, ["even"], "is not clear"),
    ],
)
def test_arguments_that_are_nobodys_are_refused(arguments: dict[str, Any], plugins: list[str], text: str) -> None:
    with pytest.raises(RequestError, match=text) as refused:
        arguments_by_plugin(arguments, plugins)
    assert refused.value.parameter == "extra_args"
