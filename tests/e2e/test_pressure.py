"""A KV cache far too small for its requests changes when they are computed, and by whose turn, but no token of theirs.

Every policy preempts by recompute and by swap, in turns with and without a step planned ahead.
"""

from typing import Any

import pytest

from pyllm import LLMEngine, SamplingParams, SchedulingParams
from tests import in_process

NUM_BLOCKS = 6
NEW_TOKENS = 16
GREEDY = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
FORKED = SamplingParams(n=3, seed=11, temperature=0.8, max_tokens=NEW_TOKENS, ignore_eos=True)
# Lengths of the prompts, and how each goes on.
REQUESTS = [(5, GREEDY), (33, GREEDY), (16, FORKED), (11, GREEDY), (16, FORKED), (5, GREEDY)]
PROMPTS = [[(29 * place * place + 7 * number) % 256 for place in range(REQUESTS[number][0])] for number in range(6)]
# Who comes late is wanted first, so that policies that look at this have a reason to preempt.
PLACES = [SchedulingParams(priority=-number, tenant=f"tenant-{number % 3}") for number in range(len(REQUESTS))]

Samples = list[list[int]]


def generate(engine: LLMEngine) -> list[Samples]:
    """The tokens of every sample of every request, which all come at once."""
    outputs = in_process.generate(engine, PROMPTS, [params for _, params in REQUESTS], PLACES)
    return [[list(sample.token_ids) for sample in output.outputs] for output in outputs]


@pytest.fixture(scope="module")
def expected(model: str) -> list[Samples]:
    """What an engine says that has room for all of them."""
    with in_process.engine(model) as roomy:
        answers = generate(roomy)
        assert roomy.stats()["num_preemptions"] == 0
    assert all(len(tokens) == NEW_TOKENS for samples in answers for tokens in samples)
    assert {len({tuple(tokens) for tokens in samples}) for samples in answers} == {1, 3}
    return answers


@pytest.mark.parametrize("policy", ["fcfs", "priority", "shortest", "fair"])
@pytest.mark.parametrize(("swaps", "overlap"), [(False, False), (False, True), (True, False), (True, True)])
def test_preempted_requests_say_the_same(
    model: str, expected: list[Samples], policy: str, swaps: bool, overlap: bool
) -> None:
    # They are admitted as soon as they fit, so that growth must preempt.
    tight: dict[str, Any] = {"num_gpu_blocks_override": NUM_BLOCKS, "watermark": 0.0, "expected_growth": 0.0}
    tight |= {"max_model_len": NUM_BLOCKS * 16, "kv_offloading_size": "32MiB" if swaps else 0}
    with in_process.engine(model, scheduling_policy=policy, async_scheduling=overlap, **tight) as engine:
        assert generate(engine) == expected
        stats = engine.stats()
    assert stats["num_preemptions"] > 0
    assert (stats["num_swapped"] > 0) == swaps
    assert (stats["num_used_blocks"], stats["num_requests"]) == (0, 0)
