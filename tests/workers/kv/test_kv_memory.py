"""A rank's KV blocks through its runner: sizes, swaps and copies."""

from itertools import count

import pytest

from pyllm.config.engine_settings import MIN_CPU_KV_CACHE_BYTES
from pyllm.errors import ConfigError
from pyllm.wire.messages import Sampling
from pyllm.workers.layers.rank_group import RankGroup
from pyllm.workers.model_runner import ModelRunner
from tests.plans import Planner, Row
from tests.workers.continuations import NUM_TOKENS, PROMPTS
from tests.workers.engine import greedy, loaded_runner, run, worker_config

BLOCK_BYTES = 2 * 2 * 16 * 3 * 16 * 4  # keys and values, layers, tokens, heads, head_dim, float32
DRAWN = Sampling(temperature=1.0)
MANY = tuple((number + 0.5) / 1000 for number in range(1000))  # What these draw shows the whole distribution.


def test_what_was_swapped_out_goes_on_as_if_it_had_stayed(model: str, expected: list[list[int]]) -> None:
    prompt, tokens = PROMPTS[2], expected[2]
    stays = loaded_runner(model, num_blocks=5)
    planner = Planner(5)
    planner.start(0, DRAWN)
    run(stays, planner.step(Row(0, prompt)))
    undisturbed = [run(stays, planner.step(Row(0, [token], MANY))) for token in tokens[:3]]
    assert all(len(set(drawn)) > 100 for drawn in undisturbed)

    # Of five blocks the first sequence needs three, and the second four: it overwrites what the first has left behind.
    moves = loaded_runner(model, num_blocks=5, num_host_blocks=7)
    planner = Planner(5, num_host_blocks=7)
    planner.start(0, DRAWN)
    run(moves, planner.step(Row(0, prompt)))
    blocks = set(planner.tables[0])
    first = planner.swap_out(0)
    planner.start(0)
    run(moves, planner.step(Row(0, prompt[::-1] + prompt[:10])))
    assert blocks < set(planner.tables[0])
    # The two change places within one step, and a step later once more.
    second = planner.swap_out(0)
    planner.start(5, DRAWN)
    planner.swap_in(5, *first)
    assert set(planner.tables[5]) != blocks
    assert run(moves, planner.step(Row(5, tokens[:1], MANY))) == undisturbed[0]
    first = planner.swap_out(5)
    planner.start(1)
    planner.swap_in(1, *second)
    run(moves, planner.step(Row(1, [9])))
    planner.start(1)
    planner.start(2, DRAWN)
    planner.swap_in(2, *first)
    for token, drawn in zip(tokens[1:3], undisturbed[1:], strict=True):
        assert run(moves, planner.step(Row(2, [token], MANY))) == drawn


def test_a_swapped_sequence_samples_as_before(model: str, expected: list[list[int]]) -> None:
    runner = loaded_runner(model, num_host_blocks=4)
    planner = Planner(num_host_blocks=4)
    tokens = greedy(runner, planner, 0, PROMPTS[0], 3)
    swapped = planner.swap_out(0)
    assert greedy(runner, planner, 0, PROMPTS[2], NUM_TOKENS) == expected[2]
    planner.start(3)
    planner.swap_in(3, *swapped)
    tokens += run(runner, planner.step(Row(3, tokens[-1:])))
    while len(tokens) < NUM_TOKENS:
        tokens += run(runner, planner.step(Row(3, [-1])))
    assert tokens == expected[0]


def test_blocks_are_copied_once_they_are_back(model: str, expected: list[list[int]]) -> None:
    runner = loaded_runner(model, num_blocks=4, num_host_blocks=2)
    planner = Planner(4, num_host_blocks=2)
    tokens = greedy(runner, planner, 0, PROMPTS[0], 3)
    swapped = planner.swap_out(0)
    assert greedy(runner, planner, 0, PROMPTS[2], 1) == expected[2][:1]
    planner.start(0)
    planner.start(3)
    planner.swap_in(3, *swapped)
    planner.unshare(3)
    assert run(runner, planner.step(Row(3, tokens[-1:]))) == [expected[0][3]]


def test_kv_caches_are_as_large_as_they_are_told(model: str) -> None:
    runner = ModelRunner(worker_config(model), RankGroup())
    assert runner.num_blocks() == MIN_CPU_KV_CACHE_BYTES // BLOCK_BYTES
    runner = ModelRunner(worker_config(model, kv_cache_memory_bytes="1MiB", dtype="bfloat16"), RankGroup())
    assert runner.num_blocks() == (1 << 20) // (BLOCK_BYTES // 2)


def test_host_pools_are_as_large_as_they_are_told(model: str) -> None:
    clock = count()  # Each round takes a second by it, whatever is moved.
    runner = ModelRunner(worker_config(model, kv_offloading_size="1MiB"), RankGroup(), lambda: float(next(clock)))
    runner.load()
    assert runner.call("num_host_blocks") == (1 << 20) // BLOCK_BYTES
    runner.call("allocate", (64, 5))
    assert runner.call("statistics")["host_kv_cache_bytes"] == 5 * BLOCK_BYTES
    assert runner.call("swap_seconds") == 1 / 5


def test_without_a_host_pool_nothing_is_swapped(runner: ModelRunner) -> None:
    assert runner.call("num_host_blocks") == 0
    assert runner.call("swap_seconds") == 0.0


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ("1k", f"no room for a block of {BLOCK_BYTES:,} bytes on each of 1 rank"),
        ("999TiB", "more than the .* has:"),
    ],
)
def test_a_host_pool_that_cannot_be_is_a_configuration_error(model: str, size: str, message: str) -> None:
    runner = ModelRunner(worker_config(model, kv_offloading_size=size), RankGroup())
    with pytest.raises(ConfigError, match=message):
        runner.load()


@pytest.mark.parametrize("pauses_first", [True, False])
def test_the_first_pages_are_prefaulted_from_the_first_pause_on(model: str, pauses_first: bool) -> None:
    runner = ModelRunner(worker_config(model), RankGroup())
    runner.load()
    if pauses_first:
        runner.idle()
    runner.allocate(64)
    memory = runner._memory
    assert memory._prefaulter is not None
    assert (memory._prefaulter._thread is not None) == pauses_first
    if not pauses_first:
        runner.idle()
    assert memory._prefaulter._thread is not None
    memory.release()
