"""A request's tokens depend on nothing but the request: not on what runs beside it, nor on how it was scheduled.

The sampled ones draw from the whole distribution, so that any other bit in the logits soon gives other tokens. The
embedded model has its own precision; a tiny one has the others, whose matrices are small.
"""

import functools
from typing import Any

import pytest

from pyllm import LLM, SamplingParams
from tests import in_process
from tests.e2e.stretches import stretches
from tests.tiers import full
from tests.tiny_model import write_tiny_model

Tokens = list[int]

NUM_REQUESTS = 16
NEW_TOKENS = 24
PRECISIONS: dict[str, dict[str, Any]] = {
    "embedded": {},
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "float16": {"dtype": "float16"},
    "int8": {"quantization": "int8"},
}
ALONE: dict[str, Any] = {
    "max_num_seqs": 1,
    "enable_prefix_caching": False,
    "max_num_batched_tokens": 2048,
    "num_speculative_tokens": 0,
}
FEW: dict[str, Any] = {
    "num_gpu_blocks_override": 44,
    "enable_prefix_caching": False,
    "watermark": 0.0,
    "expected_growth": 0.0,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "in small chunks": {"max_num_batched_tokens": 40},
    "swapped out and in": {**FEW, "kv_offloading_size": "64MiB"},
    "with a prefix cache": {"max_num_batched_tokens": 2048},
    "with other blocks": {"block_size": 128, "enable_prefix_caching": False},
    "preempted and computed again": FEW,
}
# The embedded model takes half a minute for each.
CASES = [
    (full if precision == "embedded" and setting != "swapped out and in" else pytest.param)(precision, setting)
    for precision in PRECISIONS
    for setting in SETTINGS
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The model of each precision."""
    return dict.fromkeys(PRECISIONS, write_tiny_model(tmp_path_factory.mktemp("tiny"))) | {"embedded": ""}


def requests(model: str) -> tuple[list[Tokens], list[SamplingParams]]:
    """Prompts of 5 to 300 tokens, some with a common prefix; every other one is sampled."""
    prompts = [stretch[:300] for stretch in stretches()[1::2]]
    prompts += [prompt[: 7 + 11 * number] for number, prompt in enumerate(prompts)]
    if model:
        prompts = [[token % 256 for token in prompt] for prompt in prompts]
    params = [
        SamplingParams(temperature=number % 2, seed=number, max_tokens=NEW_TOKENS, ignore_eos=True)
        for number in range(NUM_REQUESTS)
    ]
    return prompts[:NUM_REQUESTS], params


def together(model: str, **options: Any) -> tuple[list[Tokens], dict[str, int]]:
    with in_process.engine(model, **options) as engine:
        return in_process.tokens(in_process.generate(engine, *requests(model))), engine.stats()


def one_by_one(model: str, **options: Any) -> tuple[list[Tokens], dict[str, int]]:
    with in_process.engine(model, **options) as engine:
        outputs = [in_process.generate(engine, [prompt], own)[0] for prompt, own in zip(*requests(model), strict=True)]
        return in_process.tokens(outputs), engine.stats()


@functools.cache
def alone(model: str, precision: str) -> list[Tokens]:
    """What each request gets when nothing runs beside it."""
    return one_by_one(model, **ALONE, **PRECISIONS[precision])[0]


@pytest.mark.parametrize(("precision", "setting"), CASES)
def test_tokens_are_those_of_the_request_alone(models: dict[str, str], precision: str, setting: str) -> None:
    model = models[precision]
    options = PRECISIONS[precision] | SETTINGS[setting]
    found, stats = together(model, **options)
    assert found == alone(model, precision)
    assert (stats["num_preemptions"] > 0) == ("watermark" in options)
    assert (stats["num_swapped"] > 0) == ("kv_offloading_size" in options)


def test_what_a_stream_alone_guesses_changes_nothing() -> None:
    guessed, stats = one_by_one("", num_speculative_tokens=16)
    assert guessed == alone("", "embedded")
    assert 0 < stats["num_accepted_drafts"] < stats["num_drafts"]


@pytest.mark.full
@pytest.mark.parametrize("precision", ["embedded", "float32"])
def test_three_ranks_give_the_same_alone_and_together(precision: str) -> None:
    options: dict[str, Any] = {"tensor_parallel_size": 3, **PRECISIONS[precision]}
    prompts, params = (some[:6] for some in requests(""))
    with LLM(max_num_batched_tokens=64, **options) as llm:
        found = llm.generate(prompts, params)
    with LLM(**ALONE, **options) as llm:
        expected = [llm.generate([prompt], [own])[0] for prompt, own in zip(prompts, params, strict=True)]
    assert in_process.tokens(found) == in_process.tokens(expected)
