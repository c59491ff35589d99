"""What a client checks and fills in before a request leaves it."""

from array import array
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from pyllm.client.client import EngineClient
from pyllm.client.submission import prepare, prepare_embedding
from pyllm.errors import RequestError, RequestTooLargeError
from pyllm.parameters.sampling_params import SamplingParams
from pyllm.parameters.scheduling_params import SchedulingParams
from pyllm.parameters.structured_outputs_params import ResolvedConstraint, StructuredOutputsParams
from pyllm.wire.messages import Sampling
from tests.client.fake_core import MODEL


def test_token_ids_and_packed_bytes_are_the_same_prompt() -> None:
    packed = array("i", [1, 2, 599]).tobytes()
    for prompt in ([1, 2, 599], packed, bytearray(packed), memoryview(packed)):
        assert prepare(prompt, SamplingParams(), MODEL).prompt == packed


def test_sampling_reaches_the_wire() -> None:
    params = SamplingParams(temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, seed=-2, n=3)
    submit = prepare([1], params, MODEL)
    assert submit.sampling == Sampling(temperature=0.5, top_k=7, top_p=0.9, min_p=0.1)
    assert sampling(top_k=-1) == Sampling(top_k=0)
    assert (submit.n, submit.seed) == (3, 2**64 - 2)


def test_scheduling_reaches_the_wire() -> None:
    scheduling = SchedulingParams(priority=-2, tenant="acme", timeout=9.0, ttft_target=0.5, tpot_target=0.1)
    submit = prepare([1], SamplingParams(), MODEL, scheduling)
    assert (submit.priority, submit.tenant) == (-2, "acme")
    assert (submit.timeout, submit.ttft_target, submit.tpot_target) == (9.0, 0.5, 0.1)
    plain = prepare([1], SamplingParams(), MODEL)
    assert (plain.priority, plain.tenant, plain.timeout) == (0, "", None)


def test_a_seed_is_drawn_where_none_is_given() -> None:
    seeds = {prepare([1], SamplingParams(seed=seed), MODEL).seed for seed in [None, -1] * 4}  # -1 as in vLLM
    assert len(seeds) == 8
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_seeds_may_be_drawn_from_one() -> None:
    def seeds(seed: int | None, index: int) -> list[int]:
        client = EngineClient()
        client.draw_seeds_from(seed, index)
        return [prepare([1], SamplingParams(), MODEL, draw_seed=client.draw_seed).seed for _ in range(4)]

    assert seeds(3, 0) == seeds(3, 0)
    assert len({*seeds(3, 0), *seeds(3, 1), *seeds(4, 0), *seeds(None, 0)}) == 16
    assert prepare([1], SamplingParams(seed=5), MODEL, draw_seed=lambda: 9).seed == 5


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
    assert prepare([1] * 50, SamplingParams(max_tokens=None), small).max_tokens == 14
    assert prepare([1] * 64, SamplingParams(max_tokens=None), small).max_tokens == 1
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


def test_a_model_without_a_head_only_embeds() -> None:
    model = msgspec.structs.replace(MODEL, can_generate=False)
    with pytest.raises(RequestError, match="tiny only embeds: use /v1/embeddings"):
        prepare([1], SamplingParams(), model)
    assert prepare_embedding([1], model).max_tokens == 0


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


def sampling(**options: Any) -> Sampling:
    return prepare([1], SamplingParams(**options), MODEL).sampling


def packed(*tokens: int) -> bytes:
    return array("i", tokens).tobytes()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"presence_penalty": 0.5}, Sampling(presence_penalty=0.5)),
        ({"frequency_penalty": -0.5}, Sampling(frequency_penalty=-0.5)),
        ({"temperature": 0.0}, Sampling(temperature=0.0)),
        ({"temperature": 1e-50, "top_p": 1e-50}, Sampling(temperature=1e-30, top_p=1e-30)),
        ({"repetition_penalty": 1.5}, Sampling(repetition_penalty=1.5)),
        ({"logit_bias": {5: 150.0, 6: -1e9, 7: 0.0}}, Sampling(logit_bias={5: 100.0, 6: -100.0})),
        ({"allowed_token_ids": [9, 3, 9]}, Sampling(allowed_token_ids=packed(3, 9))),
        ({"bad_words_token_ids": [[5, 6], [7]]}, Sampling(bad_words=(packed(5, 6), packed(7)))),
        (
            {"min_tokens": 4, "stop_token_ids": [9, 3, 600]},
            Sampling(min_tokens=4, stop_token_ids=packed(0, 3, 9)),
        ),
        ({"stop_token_ids": [9]}, Sampling()),
        (
            {
                "thinking_token_budget": 7,
                "reasoning_start_token_ids": [[4], [5, 4]],
                "reasoning_end_token_ids": [[6, 7]],
            },
            Sampling(thinking_budget=7, thinking_starts=(packed(4), packed(5, 4)), thinking_ends=(packed(6, 7),)),
        ),
        ({"thinking_token_budget": 0, "reasoning_end_token_ids": [[6]]}, Sampling(thinking_ends=(packed(6),))),
        ({"thinking_token_budget": -1, "reasoning_end_token_ids": [[6]]}, Sampling()),
        ({"reasoning_start_token_ids": [[5]], "reasoning_end_token_ids": [[6]]}, Sampling()),
        ({"logprobs": 0}, Sampling(logprobs=0)),
        ({"prompt_logprobs": 20}, Sampling(prompt_logprobs=20)),
        ({"logprob_token_ids": [9, 3]}, Sampling(logprobs=0, logprob_token_ids=packed(9, 3))),
        ({"logprob_token_ids": [9, 3], "logprobs": 2}, Sampling(logprobs=0, logprob_token_ids=packed(9, 3))),
        ({"logprob_token_ids": [], "logprobs": 2}, Sampling(logprobs=2)),
        (
            {"structured_outputs": ResolvedConstraint(grammar='start: "a" | "b"')},
            Sampling(grammar='start: "a" | "b"'),
        ),
        ({"extra_args": {"mine": {"strength": 2}}}, Sampling(extra_args={"mine": {"strength": 2}})),
        ({"extra_args": {"target_token": 67}}, Sampling(extra_args={"target_token": 67})),
    ],
)
def test_each_parameter_reaches_the_wire(options: dict[str, Any], expected: Sampling) -> None:
    assert sampling(**options) == expected
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(expected), type=Sampling) == expected


def test_who_changes_no_logits_is_not_stateful() -> None:
    neutral = {"logit_bias": {5: 0.0}, "bad_words": [], "allowed_token_ids": None, "extra_args": {}}
    assert not sampling(**neutral, stop_token_ids=[3], logprobs=5).is_stateful
    assert sampling(min_tokens=1).is_stateful
    assert sampling(thinking_token_budget=0, reasoning_end_token_ids=[[5]]).is_stateful


def test_tokens_to_come_at_least_reach_the_wire() -> None:
    assert prepare([1], SamplingParams(min_tokens=4), MODEL).min_tokens == 4
    clipped = prepare([1] * 250, SamplingParams(min_tokens=40, max_tokens=None), MODEL)
    assert (clipped.min_tokens, clipped.max_tokens, clipped.sampling.min_tokens) == (6, 6, 6)
    stops = prepare([1], SamplingParams(min_tokens=4, stop_token_ids=[9, 600]), MODEL)
    assert stops.stop_token_ids == stops.sampling.stop_token_ids == packed(0, 9)


def test_beams_reach_the_wire_with_their_candidates() -> None:
    params = SamplingParams(beam_width=3, n=3, length_penalty=0.5, min_tokens=2, temperature=0.7, stop_token_ids=[9])
    submit = prepare([1], params, MODEL)
    assert (submit.beam_width, submit.n, submit.length_penalty) == (3, 3, 0.5)
    assert (submit.min_tokens, submit.stop_token_ids) == (2, packed(0, 9))
    assert submit.sampling == Sampling(temperature=0.0, logprobs=6)
    few = msgspec.structs.replace(MODEL, max_logprobs=5)
    with pytest.raises(RequestError, match=r"twice n, must be at most 5 \(--max-logprobs\), got 6"):
        prepare([1], params, few)


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
def test_the_model_says_how_many_log_probabilities_there_are(name: str) -> None:
    with pytest.raises(RequestError, match=rf"^{name} must be at most 20 \(--max-logprobs\), got 21") as refused:
        sampling(**{name: 21})
    assert refused.value.parameter == name


@pytest.mark.parametrize(
    ("name", "value"),
    [("logit_bias", {600: 1.0}), ("allowed_token_ids", [5, 600]), ("bad_words_token_ids", [[5], [5, 600]])],
)
def test_a_token_outside_the_vocabulary_is_refused_by_the_name_of_its_field(name: str, value: object) -> None:
    with pytest.raises(RequestError, match="token id 600 is outside the vocabulary of 600") as refused:
        sampling(**{name: value})
    assert refused.value.parameter == name


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
def test_the_whole_vocabulary_may_be_asked_for_where_the_engine_gives_it(name: str) -> None:
    with pytest.raises(RequestError, match=rf"^{name} -1 is all 600 .* at most 20 .*--max-logprobs -1") as refused:
        sampling(**{name: -1})
    assert refused.value.parameter == name
    all_of_them = msgspec.structs.replace(MODEL, max_logprobs=MODEL.vocab_size)
    submit = prepare([1], SamplingParams(**{name: -1}), all_of_them)  # type: ignore[arg-type]
    assert getattr(submit.sampling, name) == MODEL.vocab_size


def test_bad_words_take_a_tokenizer() -> None:
    with pytest.raises(RequestError, match="no tokenizer here; give bad_words_token_ids") as refused:
        sampling(bad_words=["x"])
    assert refused.value.parameter == "bad_words"


def test_a_budget_of_reasoning_takes_a_tokenizer_or_the_ids_of_its_end() -> None:
    with pytest.raises(RequestError, match="needs reasoning_end_token_ids here, where there is no tok") as refused:
        sampling(thinking_token_budget=0)
    assert refused.value.parameter == "thinking_token_budget"


@pytest.mark.parametrize(
    "constraint", [StructuredOutputsParams(choice=["a"]), StructuredOutputsParams(grammar='start: "a"')]
)
def test_a_constraint_that_is_not_resolved_is_refused(constraint: StructuredOutputsParams) -> None:
    with pytest.raises(RequestError, match=r"make one with pyllm\.resolve_constraint") as refused:
        sampling(structured_outputs=constraint)
    assert refused.value.parameter == "structured_outputs"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"mine": {"x": object()}}, "plain values"),
        ({"mine": {"x": 2**70}}, "plain values"),
        ({"mine": {"x": "y" * 70_000}}, "at most 65536 bytes"),
    ],
)
def test_arguments_that_cannot_be_sent_are_refused(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(RequestError, match=text) as refused:
        sampling(extra_args=arguments)
    assert refused.value.parameter == "extra_args"
