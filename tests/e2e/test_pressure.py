"""A KV cache far too small for its requests changes when they are computed, and by whose turn, but no token of theirs.

Every policy preempts by recompute and by swap, in turns with and without a step planned ahead.
"""

import pytest

from pyllm import LLM, SamplingParams, SchedulingParams
from tests.e2e.stretches import stretches

BLOCK_BYTES = 16 * 46_080  # float32 keys and values of 16 tokens
NUM_BLOCKS = 6
NEW_TOKENS = 16
GREEDY = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
# Samples part from one another; few candidates, so that a rounding error does not choose among them.
FORKED = SamplingParams(n=3, seed=11, temperature=0.8, top_k=3, max_tokens=NEW_TOKENS, ignore_eos=True)
# Which prompt, and how.
REQUESTS = [(0, GREEDY), (5, GREEDY), (3, FORKED), (2, GREEDY), (4, FORKED), (1, GREEDY)]
# Who comes late is wanted first, so that policies that look at this have a reason to preempt.
PLACES = [SchedulingParams(priority=-number, tenant=f"tenant-{number % 3}") for number in range(len(REQUESTS))]

Samples = list[list[int]]


def generate(llm: LLM) -> list[Samples]:
    """The tokens of every sample of every request, which all come at once."""
    prompts = stretches()
    outputs = llm.generate(
        [prompts[number] for number, _ in REQUESTS], [params for _, params in REQUESTS], scheduling=PLACES
    )
    return [[sample.token_ids for sample in output.outputs] for output in outputs]


@pytest.fixture(scope="module")
def expected() -> list[Samples]:
    """What an engine says that has room for all of them."""
    with LLM(dtype="float32", kv_cache_memory_bytes="64MiB") as roomy:
        answers = generate(roomy)
        assert roomy.stats()["num_preemptions"] == 0
    assert all(len(tokens) == NEW_TOKENS for samples in answers for tokens in samples)
    assert {len({tuple(tokens) for tokens in samples}) for samples in answers} == {1, 3}
    return answers


@pytest.mark.parametrize(
    ("policies", "swaps", "overlap"),
    [
        (("fcfs", "priority"), False, False),
        (("fcfs", "priority"), True, True),
        (("shortest", "fair"), False, True),
        (("shortest", "fair"), True, False),
    ],
)
def test_preempted_requests_say_the_same(
    expected: list[Samples], policies: tuple[str, ...], swaps: bool, overlap: bool
) -> None:
    with LLM(
        dtype="float32",
        kv_cache_memory_bytes=NUM_BLOCKS * BLOCK_BYTES,
        kv_offloading_size="32MiB" if swaps else 0,
        max_model_len=NUM_BLOCKS * 16,
        async_scheduling=overlap,
        scheduling_policy=policies[0],
        # Admit whatever fits now, so that growth must preempt.
        watermark=0.0,
        expected_growth=0.0,
    ) as tight:
        assert tight.stats()["num_blocks"] == NUM_BLOCKS
        before = tight.stats()
        for policy in policies:
            assert tight.reconfigure(scheduling_policy=policy)["scheduling_policy"] == policy
            tight.reset_prefix_cache()
            assert generate(tight) == expected, policy
            after = tight.stats()
            assert after["num_preemptions"] > before["num_preemptions"], policy
            assert (after["num_swapped"] > before["num_swapped"]) == swaps, policy
            assert (after["num_used_blocks"], after["num_requests"]) == (0, 0)
            before = after
