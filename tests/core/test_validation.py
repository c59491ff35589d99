import math
from array import array
from typing import Any

import msgspec
import pytest

from pyllm.core.validation import MAX_EXTRA_ARGS_DEPTH, check_submit
from pyllm.errors import RequestError
from pyllm.parameters.sampling_params import (
    LEAST_POSITIVE,
    MAX_BAD_WORDS_TOKENS,
    MAX_EXTRA_ARGS_BYTES,
    MAX_LOGIT_BIASES,
    MAX_LOGPROB_TOKEN_IDS,
)
from pyllm.parameters.structured_outputs_params import MAX_GRAMMAR_BYTES
from pyllm.wire.messages import POOLING, ModelInfo, Sampling, Submit
from tests.core.raw_engine import EPOCH, MODEL

VOCABULARY = MODEL.vocab_size


def ids(*tokens: int) -> bytes:
    return array("i", tokens).tobytes()


def submit(**sampling: Any) -> Submit:
    return Submit(EPOCH, 1, ids(1), 0, 4, Sampling(**sampling))


def nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = {"a": value} if level % 2 else [value]
    return value


def refusal(request: Submit, model: ModelInfo = MODEL) -> RequestError:
    with pytest.raises(RequestError) as refused:
        check_submit(request, model, ["even"])
    return refused.value


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": LEAST_POSITIVE, "top_p": LEAST_POSITIVE, "min_p": 1e-50},
        {"presence_penalty": -2.0, "frequency_penalty": 2.0, "repetition_penalty": 0.01},
        {"presence_penalty": 1e-50, "frequency_penalty": -1e-50, "repetition_penalty": 100.0},
        {"logit_bias": {0: -100.0, VOCABULARY - 1: 100.0}},
        {"allowed_token_ids": ids(*range(VOCABULARY)), "stop_token_ids": ids(VOCABULARY - 1)},
        {"logit_bias": dict.fromkeys(range(1000), -1e-50)},
        {"bad_words": (ids(0),) * MAX_BAD_WORDS_TOKENS},
        {"bad_words": (ids(*[5] * VOCABULARY),) * (MAX_BAD_WORDS_TOKENS // VOCABULARY)},
        {"min_tokens": 4},
        {"thinking_budget": 2**31 - 1, "thinking_starts": (ids(0),), "thinking_ends": (ids(1, 2), ids(VOCABULARY - 1))},
        {"temperature": 0.0, "pooling": "last"},
        {"logprobs": 0, "prompt_logprobs": MODEL.max_logprobs},
        {"logprobs": 0, "logprob_token_ids": ids(*range(MAX_LOGPROB_TOKEN_IDS))},
        {"grammar": "x" * MAX_GRAMMAR_BYTES},
        {"extra_args": {"even": {"hard": True}}},
        {"extra_args": {"even": 5}},
        {"extra_args": {"target_token": 67, "strength": None}},
        {"extra_args": {"even": {"x": "y" * (MAX_EXTRA_ARGS_BYTES - 12)}}},
        {"extra_args": {"even": nested(MAX_EXTRA_ARGS_DEPTH - 1)}},
    ],
)
def test_what_is_at_its_limit_is_taken(sampling: dict[str, Any]) -> None:
    check_submit(submit(**sampling), MODEL, ["even"])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", math.nan),
        ("temperature", 1e-50),
        ("top_k", 2**31),
        ("top_p", 0.0),
        ("top_p", 1e-50),
        ("min_p", 2.0),
        ("presence_penalty", 2.5),
        ("presence_penalty", math.nan),
        ("frequency_penalty", -math.inf),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 1e-50),
        ("repetition_penalty", 1e39),
        ("repetition_penalty", math.inf),
        ("repetition_penalty", math.nan),
        ("logit_bias", {VOCABULARY: 1.0}),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {1: 0.0, 2**70: 1.0}),
        ("logit_bias", {1: 101.0}),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", {0: 1.0, 1: -math.inf, 2: 1.0}),
        ("logit_bias", {0: 1.0, 1: math.nan, 2: 1.0}),
        ("allowed_token_ids", ids(VOCABULARY)),
        ("allowed_token_ids", ids(-1, 5)),
        ("allowed_token_ids", ids(5)[:3]),
        ("allowed_token_ids", ids(*[5] * (VOCABULARY + 1))),
        ("stop_token_ids", ids(VOCABULARY)),
        ("stop_token_ids", ids(1)[:2]),
        ("bad_words", (ids(1), b"")),
        ("bad_words", (ids(1, 2)[:5],)),
        ("bad_words", (ids(1, VOCABULARY),)),
        ("bad_words", (ids(0),) * (MAX_BAD_WORDS_TOKENS + 1)),
        ("bad_words", (ids(*[5] * VOCABULARY),) * (MAX_BAD_WORDS_TOKENS // VOCABULARY + 1)),
        ("thinking_budget", -1),
        ("thinking_budget", 2**31),
        ("thinking_starts", (b"",)),
        ("thinking_starts", (ids(VOCABULARY),)),
        ("thinking_ends", (ids(1), ids(-1))),
        ("thinking_ends", (ids(0),) * (MAX_BAD_WORDS_TOKENS + 1)),
        ("min_tokens", -1),
        ("min_tokens", 5),
        ("logprobs", -1),
        ("logprobs", MODEL.max_logprobs + 1),
        ("prompt_logprobs", -1),
        ("prompt_logprobs", MODEL.max_logprobs + 1),
        ("logprob_token_ids", ids(VOCABULARY)),
        ("logprob_token_ids", ids(*[5] * (MAX_LOGPROB_TOKEN_IDS + 1))),
        ("grammar", "x" * (MAX_GRAMMAR_BYTES + 1)),
        ("grammar", "\N{HIRAGANA LETTER A}" * (MAX_GRAMMAR_BYTES // 2)),
        ("extra_args", {"even": {}, "odd": {}}),
        ("extra_args", {"even": {"x": "y" * (MAX_EXTRA_ARGS_BYTES - 11)}}),
        ("extra_args", {"even": nested(MAX_EXTRA_ARGS_DEPTH)}),
        ("extra_args", {"even": {"x": nested(10_000)}}),
    ],
)
def test_what_would_end_a_worker_is_refused_by_name(field: str, value: Any) -> None:
    refused = refusal(submit(**{field: value}))
    assert refused.parameter == field
    assert field in str(refused) or field == "extra_args"


def test_a_model_without_a_head_only_embeds() -> None:
    model = msgspec.structs.replace(MODEL, can_generate=False)
    with pytest.raises(RequestError, match="only embeds"):
        check_submit(submit(), model, ())
    check_submit(msgspec.structs.replace(submit(), sampling=POOLING["last"], max_tokens=0), model, ())


def test_logit_biases_are_counted() -> None:
    large = msgspec.structs.replace(MODEL, vocab_size=2 * MAX_LOGIT_BIASES)
    check_submit(submit(logit_bias=dict.fromkeys(range(MAX_LOGIT_BIASES), 1.0)), large, ())
    refused = refusal(submit(logit_bias=dict.fromkeys(range(MAX_LOGIT_BIASES + 1), 1.0)), large)
    assert str(refused) == "logit_bias must be at most 1024 tokens, got 1025"


def test_an_unknown_logits_processor_is_told_of_those_there_are() -> None:
    assert (
        str(refusal(submit(extra_args={"odd": {}})))
        == "there is no logits processor or sampler 'odd'; installed are even"
    )


def test_tokens_are_named_in_place_of_the_likeliest() -> None:
    for logprobs in (None, 1):
        refused = refusal(submit(logprobs=logprobs, logprob_token_ids=ids(5)))
        assert str(refused) == f"logprobs must be 0 beside logprob_token_ids, got {logprobs}"


@pytest.mark.parametrize("logprobs", [None, 3, 5])
def test_a_beam_search_asks_for_its_candidates(logprobs: int | None) -> None:
    beams = msgspec.structs.replace(submit(logprobs=logprobs), n=2, beam_width=2)
    refused = refusal(beams)
    assert str(refused) == f"logprobs must be twice the beam_width, 4, got {logprobs}"
    check_submit(msgspec.structs.replace(beams, sampling=Sampling(logprobs=4)), MODEL, ())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("age", -1.0),
        ("age", math.nan),
        ("age", 1e9),
        ("length_penalty", 1e300),
        ("length_penalty", math.nan),
    ],
)
def test_fields_beside_the_sampling_are_refused_by_name(field: str, value: Any) -> None:
    assert refusal(msgspec.structs.replace(submit(), **{field: value})).parameter == field


@pytest.mark.parametrize(
    "sampling", [*({"pooling": kind} for kind in (*POOLING, "max")), {"pooling": "last", "logprobs": 1}]
)
def test_pooling_excludes_all_other_sampling(sampling: dict[str, Any]) -> None:
    assert refusal(submit(**sampling)).parameter == "pooling"
