"""What users ask of a beam search becomes one request; what that found becomes what they get."""

from typing import Any

import msgspec
import pytest

from pyllm.errors import RequestError
from pyllm.frontend.text.beam_search import BeamSearchParams, BeamSearchSequence, beam_search_output
from pyllm.frontend.text.outputs import CompletionOutput, RequestOutput
from pyllm.parameters.sampling_params import SamplingParams


def decode(tokens: object) -> str:
    assert isinstance(tokens, list)
    return "".join(chr(token) for token in tokens)


def test_a_search_is_a_request_of_as_many_samples_as_it_has_beams() -> None:
    params = BeamSearchParams(4, 16, ignore_eos=True, length_penalty=0.5)
    expected = SamplingParams(n=4, beam_width=4, temperature=0.0, max_tokens=16, ignore_eos=True, length_penalty=0.5)
    assert params.sampling() == expected


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"beam_width": 0}, "beam_width"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": 0.5}, "temperature"),
        ({"length_penalty": float("nan")}, "length_penalty"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"allowed_token_ids": [1]}, "allowed_token_ids"),
        ({"watermarking": True}, "watermarking"),
    ],
)
def test_values_out_of_range_are_refused_by_name(wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError, match=field) as refused:
        BeamSearchParams(**{"beam_width": 2, "max_tokens": 8, **wrong})
    assert refused.value.parameter == field


def test_sequences_begin_with_the_prompt_and_their_text_ends_before_the_stop_token() -> None:
    found = [
        CompletionOutput(0, "b", [98, 33], "stop", 33, cumulative_logprob=-0.5),
        CompletionOutput(1, "cd", [99, 100], "length", cumulative_logprob=-2.0),
    ]
    request = RequestOutput("req-1", "a", [97], found, True)
    params = BeamSearchParams(2, 2)
    with pytest.raises(TypeError, match="BeamSearchParams has no 'beam_widht': did you mean 'beam_width'"):
        BeamSearchParams(beam_widht=1, max_tokens=2)  # type: ignore[call-arg]
    expected = [
        BeamSearchSequence([97, 98, 33], -0.5, "ab", "stop", 33),
        BeamSearchSequence([97, 99, 100], -2.0, "acd", "length"),
    ]
    assert beam_search_output(request, params, decode).sequences == expected
    with_stop = msgspec.structs.replace(params, include_stop_str_in_output=True)
    assert beam_search_output(request, with_stop, decode).sequences[0].text == "ab!"
