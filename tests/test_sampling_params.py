import pytest

from pyllm import SamplingParams
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
        ("stop", ("a", "b", "c", "d", "e")),
        ("stop", ""),
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
