"""Summaries of the last seconds, by a clock that the test moves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllm.client.columns import StartTimes
from pyllm.frontend.observability.summary import Percentiles, RecentRequests, percentiles

STATS = dict.fromkeys(("num_running", "num_waiting", "num_held", "num_loading", "num_used_blocks"), 0) | {
    "num_blocks": 8
}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def run(recent: RecentRequests, clock: Clock, *, pauses: tuple[float, ...], cached: int = 0) -> None:
    """A request of 10 prompt tokens and one token after each pause, which ends with the last."""
    times = recent.follow(10, 1)
    for pause in pauses:
        clock.now += pause
        times.delta(0, 1, cached, StartTimes(0.25, 0.5))
    times.finish(0)


def test_one_request(clock: Clock) -> None:
    recent = RecentRequests(clock)
    run(recent, clock, pauses=(1.0, 0.25, 0.75), cached=4)
    summary = recent.summary(60.0, {**STATS, "num_held": 2, "num_used_blocks": 2}, 7)
    assert (summary.window, summary.num_requests, summary.num_waiting) == (2.0, 1, 2)
    assert summary.generation_tokens_per_second == 1.5
    assert summary.prompt_tokens_per_second == 5.0
    assert summary.time_to_first_token == Percentiles(1, 1.0, 1.0, 1.0, 1.0, 1.0)
    assert summary.time_per_output_token.p50 == 0.5
    assert (summary.inter_token_latency.count, summary.inter_token_latency.max) == (2, 0.75)
    assert (summary.end_to_end.mean, summary.queue.mean) == (2.0, 0.25)
    assert (summary.prefix_cache_hit_rate, summary.kv_cache_usage, summary.memory_bytes) == (0.4, 0.25, 7)


def test_what_is_older_than_the_window_does_not_count(clock: Clock) -> None:
    recent = RecentRequests(clock)
    run(recent, clock, pauses=(1.0, 1.0))
    clock.now += 100
    run(recent, clock, pauses=(0.5,))
    summary = recent.summary(10.0, STATS, 0)
    assert (summary.window, summary.num_requests, summary.end_to_end.max) == (10.0, 1, 0.5)
    assert summary.generation_tokens_per_second == 0.1
    assert recent.summary(1000.0, STATS, 0).num_requests == 2


def test_a_request_with_several_samples_counts_once(clock: Clock) -> None:
    recent = RecentRequests(clock)
    times = recent.follow(10, 2)
    clock.now += 1
    for sample in (1, 0):
        times.delta(sample, 2, 0, None)
        times.finish(sample)
    summary = recent.summary(1.0, STATS, 0)
    assert (summary.num_requests, summary.prompt_tokens_per_second, summary.end_to_end.count) == (1, 10.0, 2)


def test_a_request_without_a_token_has_no_first_token(clock: Clock) -> None:
    recent = RecentRequests(clock)
    recent.follow(10, 1).finish(0)
    summary = recent.summary(1.0, STATS, 0)
    assert (summary.num_requests, summary.time_to_first_token) == (1, Percentiles())


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_percentiles_are_values_with_so_many_at_or_below_them(values: list[float]) -> None:
    found = percentiles(values)
    assert (found.count, found.max) == (len(values), max(values))
    for percent, value in ((50, found.p50), (90, found.p90), (99, found.p99)):
        assert value in values
        assert sum(other <= value for other in values) * 100 >= percent * len(values)
        assert sum(other < value for other in values) * 100 < percent * len(values)
