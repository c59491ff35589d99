"""What a client checks and fills in before a request leaves it."""

from array import array
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from pyllm.errors import RequestError, RequestTooLargeError
from pyllm.frontend.submission import prepare
from pyllm.messages import Sampling
from pyllm.sampling_params import SamplingParams
from pyllm.scheduling_params import SchedulingParams
from tests.frontend.fake_core import MODEL


def test_token_ids_and_packed_bytes_are_the_same_prompt() -> None:
    packed = array("i", [1, 2, 599]).tobytes()
    for prompt in ([1, 2, 599], packed, bytearray(packed), memoryview(packed)):
        assert prepare(prompt, SamplingParams(), MODEL).prompt == packed


def test_sampling_reaches_the_wire() -> None:
    params = SamplingParams(temperature=0.5, top_p=0.9, top_k=-1, min_p=0.1, seed=-1, n=3)
    submit = prepare([1], params, MODEL)
    assert submit.sampling == Sampling(temperature=0.5, top_k=0, top_p=0.9, min_p=0.1)
    assert (submit.n, submit.seed) == (3, 2**64 - 1)


def test_scheduling_reaches_the_wire() -> None:
    scheduling = SchedulingParams(priority=-2, tenant="acme", timeout=9.0, ttft_target=0.5, tpot_target=0.1)
    submit = prepare([1], SamplingParams(), MODEL, scheduling)
    assert (submit.priority, submit.tenant) == (-2, "acme")
    assert (submit.timeout, submit.ttft_target, submit.tpot_target) == (9.0, 0.5, 0.1)
    plain = prepare([1], SamplingParams(), MODEL)
    assert (plain.priority, plain.tenant, plain.timeout) == (0, "", None)


def test_a_seed_is_drawn_where_none_is_given() -> None:
    seeds = {prepare([1], SamplingParams(), MODEL).seed for _ in range(8)}
    assert len(seeds) == 8
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_eos_joins_the_stop_tokens_unless_it_is_ignored() -> None:
    def stops(**options: object) -> list[int]:
        params = msgspec.convert({"stop_token_ids": (9, 3), **options}, SamplingParams)
        return array("i", prepare([1], params, MODEL).stop_token_ids).tolist()

    assert stops() == [0, 3, 9]
    assert stops(ignore_eos=True) == [3, 9]


@pytest.mark.parametrize(("wanted", "given"), [(None, 156), (5, 5), (156, 156), (1000, 156)])
def test_max_tokens_fits_the_context(wanted: int | None, given: int) -> None:
    assert prepare([1] * 100, SamplingParams(max_tokens=wanted), MODEL).max_tokens == given


def test_without_max_tokens_a_small_cache_is_the_limit() -> None:
    small = msgspec.structs.replace(MODEL, kv_cache_tokens=64)
    assert prepare([1] * 50, SamplingParams(), small).max_tokens == 14
    assert prepare([1] * 64, SamplingParams(), small).max_tokens == 1
    assert prepare([1] * 50, SamplingParams(max_tokens=15), small).max_tokens == 15
    with pytest.raises(RequestTooLargeError, match=r"holds 64 tokens.* has 50 tokens and 16 were asked for"):
        prepare([1] * 50, SamplingParams(max_tokens=16), small)
    with pytest.raises(RequestTooLargeError, match="prompt has 65 tokens"):
        prepare([1] * 65, SamplingParams(), small)


def test_a_prompt_that_fills_the_context_is_refused_with_the_numbers() -> None:
    text = "maximum context length is 256 tokens. However, your prompt has 256 tokens"
    with pytest.raises(RequestTooLargeError, match=text):
        prepare([1] * 256, SamplingParams(max_tokens=1), MODEL)
    assert prepare([1] * 255, SamplingParams(), MODEL).max_tokens == 1


def test_more_samples_than_the_model_runs_at_once_are_refused() -> None:
    assert prepare([1], SamplingParams(n=8), MODEL).n == 8
    with pytest.raises(RequestError, match=r"n must be at most 8.* got 9") as refused:
        prepare([1], SamplingParams(n=9), MODEL)
    assert refused.value.parameter == "n"


def test_a_prompt_that_is_too_long_is_not_looked_through() -> None:
    class Unread(Sequence[int]):
        def __len__(self) -> int:
            return 10_000_000

        def __getitem__(self, index: Any) -> Any:
            raise AssertionError

    with pytest.raises(RequestTooLargeError, match="your prompt has 10000000 tokens"):
        prepare(Unread(), SamplingParams(), MODEL)
    with pytest.raises(RequestTooLargeError, match="your prompt has 257 tokens"):
        prepare(memoryview(array("i", [-1] * 257)), SamplingParams(), MODEL)


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ([], "empty"),
        ([600], "600 is outside the vocabulary of 600"),
        ([-1], "-1 is outside"),
        ([2**31], "32-bit"),
        ([1.5], "32-bit"),
        ("text", "32-bit"),
        (b"\0\0\0", "32-bit"),
    ],
)
def test_what_is_no_prompt_is_refused(prompt: list[int], text: str) -> None:
    with pytest.raises(RequestError, match=text):
        prepare(prompt, SamplingParams(), MODEL)
