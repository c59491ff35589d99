"""A request's tokens depend on nothing but the request: not on what runs beside it, nor on how it was scheduled.

The sampled ones draw from the whole distribution, so that any other bit in the logits soon gives other tokens.
"""

import functools
from typing import Any

import pytest

from pyllm import LLM, SamplingParams
from tests.e2e.stretches import stretches

Tokens = list[int]

NUM_OTHERS = 15
NEW_TOKENS = 24
PRECISIONS: dict[str, dict[str, Any]] = {"default": {}, "float32": {"dtype": "float32"}}
ALONE: dict[str, Any] = {
    "max_num_seqs": 1,
    "enable_prefix_caching": False,
    "max_num_batched_tokens": 2048,
    "num_speculative_tokens": 0,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "in small chunks": {"max_num_batched_tokens": 40},
    "with a prefix cache": {"max_num_batched_tokens": 2048},
    "with other blocks": {"block_size": 128, "enable_prefix_caching": False},
    "preempted and computed again": {"kv_cache_tokens": 700, "enable_prefix_caching": False},
    "swapped out and in": {"kv_cache_tokens": 700, "enable_prefix_caching": False, "kv_offloading_size": "64MiB"},
}


def requests() -> tuple[list[Tokens], list[SamplingParams]]:
    """Prompts of 5 to 300 tokens, some with a common prefix; every other one is sampled."""
    prompts = [stretch[:300] for stretch in stretches()[1::2]]
    prompts += [prompt[: 7 + 11 * number] for number, prompt in enumerate(prompts)]
    prompts = prompts[: NUM_OTHERS + 1]
    params = [
        SamplingParams(temperature=number % 2, seed=number, max_tokens=NEW_TOKENS, ignore_eos=True)
        for number in range(len(prompts))
    ]
    return prompts, params


def generate(
    *, one_by_one: bool = False, num_requests: int = NUM_OTHERS + 1, **options: Any
) -> tuple[list[Tokens], dict[str, int]]:
    prompts, params = (some[:num_requests] for some in requests())
    with LLM(**options) as llm:
        if one_by_one:
            outputs = [llm.generate([prompt], [own])[0] for prompt, own in zip(prompts, params, strict=True)]
        else:
            outputs = llm.generate(prompts, params)
        return [output.outputs[0].token_ids for output in outputs], llm.stats()


# Those of float32 that `make oracle` leaves to itself take too long for every day.
CASES = [("default", setting) for setting in SETTINGS]
CASES += [("float32", "in small chunks"), ("float32", "preempted and computed again")]
RARE = [("float32", setting) for setting in SETTINGS if ("float32", setting) not in CASES]


@functools.cache
def alone(precision: str) -> list[Tokens]:
    """What each request gets when nothing runs beside it."""
    return generate(one_by_one=True, **ALONE, **PRECISIONS[precision])[0]


@pytest.mark.parametrize(
    ("precision", "setting"), [*CASES, *(pytest.param(*case, marks=pytest.mark.oracle) for case in RARE)]
)
def test_tokens_are_those_of_the_request_alone(precision: str, setting: str) -> None:
    options: dict[str, Any] = {"watermark": 0.0, "expected_growth": 0.0, **PRECISIONS[precision], **SETTINGS[setting]}
    tokens = options.pop("kv_cache_tokens", None)
    if isinstance(tokens, int):
        width = 4 if precision == "float32" else 2
        options["kv_cache_memory_bytes"] = tokens * 2 * 30 * 3 * 64 * width  # keys and values, layers, heads, head_dim
    together, stats = generate(**options)
    assert together == alone(precision)
    assert (stats["num_preemptions"] > 0) == (tokens is not None)
    assert (stats["num_swapped"] > 0) == ("kv_offloading_size" in options)


@pytest.mark.parametrize("precision", ["default", pytest.param("float32", marks=pytest.mark.oracle)])
def test_what_a_stream_alone_guesses_changes_nothing(precision: str) -> None:
    guessed, stats = generate(one_by_one=True, num_speculative_tokens=16, **PRECISIONS[precision])
    assert guessed == alone(precision)
    assert 0 < stats["num_accepted_drafts"] < stats["num_drafts"]


@pytest.mark.parametrize("precision", ["default", pytest.param("float32", marks=pytest.mark.oracle)])
def test_three_ranks_give_the_same_alone_and_together(precision: str) -> None:
    options: dict[str, Any] = {"tensor_parallel_size": 3, "num_requests": 6, **PRECISIONS[precision]}
    together, _ = generate(max_num_batched_tokens=64, **options)
    assert together == generate(one_by_one=True, **ALONE, **options)[0]
