from typing import Any

import pytest

from pyllm import SamplingParams, StructuredOutputsParams
from pyllm.errors import RequestError


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
        ("max_tokens", 0),
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


def test_misspelt_name_fails() -> None:
    with pytest.raises(TypeError, match="max_token"):
        SamplingParams(max_token=3)  # type: ignore[call-arg]


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
        ("bad_words_token_ids", [[1]] * 257),
        ("bad_words_token_ids", [[]]),
        ("bad_words_token_ids", [[-1]]),
        ("min_tokens", -1),
        ("logprobs", -1),
        ("prompt_logprobs", -1),
        ("beam_width", -1),
        *(("length_penalty", value) for value in (float("nan"), 1e300, -10.1)),
        ("length_penalty", 2.0),
    ],
)
def test_what_changes_logits_and_ends_has_its_bounds(name: str, value: object) -> None:
    with pytest.raises(RequestError, match=f"^{name} ") as refused:
        SamplingParams(**{name: value})
    assert refused.value.parameter == name


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


@pytest.mark.parametrize(
    "options", [{}, {"json": {}, "regex": "a"}, {"json_object": False}, {"choice": ["a"], "json_object": True}]
)
def test_structured_outputs_have_exactly_one_form(options: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="needs exactly one of json, regex, choice, grammar, json_object") as refused:
        StructuredOutputsParams(**options)
    assert refused.value.parameter == "structured_outputs"


def test_the_end_of_a_form_ends_the_output() -> None:
    form = StructuredOutputsParams(regex="a+")
    SamplingParams(structured_outputs=form, stop="a", logit_bias={5: 1.0}, logprobs=1)
    for others in ({"ignore_eos": True}, {"min_tokens": 1}):
        with pytest.raises(RequestError, match="structured_outputs exclude one another") as refused:
            SamplingParams(structured_outputs=form, **others)
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
        ("stop", "x"),
        ("logprobs", 1),
        ("prompt_logprobs", 1),
    ],
)
def test_beam_search_excludes_what_changes_its_candidates(name: str, value: object) -> None:
    with pytest.raises(RequestError, match=f"^{name} and beam_width exclude") as refused:
        SamplingParams(beam_width=2, n=2, **{name: value})
    assert refused.value.parameter == name


def test_beam_search_goes_with_what_it_can_honour() -> None:
    neutral = {"top_k": -1, "logit_bias": {}, "bad_words": [], "stop": []}
    for options in ({"temperature": 0.0}, {"temperature": 1.0, "seed": 1}, {"min_tokens": 3, "ignore_eos": True}):
        SamplingParams(beam_width=2, n=2, length_penalty=0.5, stop_token_ids=[3], **options, **neutral)
    with pytest.raises(RequestError, match="n must be the beam_width, 2"):
        SamplingParams(beam_width=2)
