"""A request's tokens depend on nothing but the request: not on what runs beside it, nor on how it was scheduled.

The sampled ones draw from the whole distribution, so that any other bit in the logits soon gives other tokens.
"""

import pytest

from pyllm import LLM, SamplingParams
from tests.e2e.stretches import stretches

Tokens = list[int]

NUM_OTHERS = 31
NEW_TOKENS = 24
PRECISIONS = {"default": {}, "float32": {"dtype": "float32"}}
ALONE = {"max_num_seqs": 1, "enable_prefix_caching": False, "max_num_batched_tokens": 2048}
SETTINGS = {
    "in small chunks": {"max_num_batched_tokens": 40},
    "with a prefix cache": {"max_num_batched_tokens": 2048},
    "with other blocks": {"block_size": 128, "enable_prefix_caching": False},
    "preempted and computed again": {"kv_cache_tokens": 700, "enable_prefix_caching": False},
    "swapped out and in": {"kv_cache_tokens": 700, "enable_prefix_caching": False, "kv_offloading_size": "64MiB"},
}


def requests() -> tuple[list[Tokens], list[SamplingParams]]:
    """Prompts of 5 to 300 tokens, some with a common prefix; every other one is sampled."""
    prompts = [stretch[:300] for stretch in stretches()]
    prompts += [prompt[: 7 + 11 * number] for number, prompt in enumerate(prompts)]
    prompts = prompts[: NUM_OTHERS + 1]
    params = [
        SamplingParams(temperature=number % 2, seed=number, max_tokens=NEW_TOKENS, ignore_eos=True)
        for number in range(len(prompts))
    ]
    return prompts, params


def generate(
    *, one_by_one: bool = False, num_requests: int = NUM_OTHERS + 1, **options: object
) -> tuple[list[Tokens], dict[str, int]]:
    prompts, params = (some[:num_requests] for some in requests())
    with LLM(**options) as llm:
        if one_by_one:
            outputs = [llm.generate([prompt], [own])[0] for prompt, own in zip(prompts, params, strict=True)]
        else:
            outputs = llm.generate(prompts, params)
        return [output.outputs[0].token_ids for output in outputs], llm.stats()


@pytest.fixture(scope="module", params=PRECISIONS)
def precision(request: pytest.FixtureRequest) -> dict[str, str]:
    return dict(PRECISIONS[request.param])


@pytest.fixture(scope="module")
def alone(precision: dict[str, str]) -> list[Tokens]:
    return generate(one_by_one=True, **ALONE, **precision)[0]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("setting", SETTINGS)
def test_tokens_are_those_of_the_request_alone(precision: dict[str, str], alone: list[Tokens], setting: str) -> None:
    options: dict[str, object] = {"watermark": 0.0, "expected_growth": 0.0, **precision, **SETTINGS[setting]}
    tokens = options.pop("kv_cache_tokens", None)
    if isinstance(tokens, int):
        bytes_of_token = 2 * 30 * 3 * 64 * (4 if precision else 2)  # keys and values, layers, heads, head_dim, width
        options["kv_cache_memory_bytes"] = tokens * bytes_of_token
    together, stats = generate(**options)
    assert together == alone
    assert (stats["num_preemptions"] > 0) == (tokens is not None)
    assert (stats["num_swapped"] > 0) == ("kv_offloading_size" in options)


@pytest.mark.timeout(600)
def test_three_ranks_give_the_same_alone_and_together(precision: dict[str, str]) -> None:
    together, _ = generate(tensor_parallel_size=3, num_requests=6, max_num_batched_tokens=64, **precision)
    alone = generate(tensor_parallel_size=3, num_requests=6, one_by_one=True, **ALONE, **precision)[0]
    assert together == alone
