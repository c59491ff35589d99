"""Summaries of the last seconds, by a clock that the test moves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllm.client.columns import StartTimes
from pyllm.client.logprobs import LogprobEntries
from pyllm.errors import PyllmError, RequestError
from pyllm.frontend.observability.measured_sink import MeasuredSink
from pyllm.frontend.observability.metrics import Metrics
from pyllm.frontend.observability.summary import Percentiles, RecentRequests, check_window, percentiles
from pyllm.frontend.text.detokenizer import TextDelta
from pyllm.parameters.sampling_params import SamplingParams
from tests.client.fake_core import MODEL

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


class Discarded:
    """A sink that hears of text, and does nothing."""

    def delta(self, index: int, delta: TextDelta) -> None:
        pass

    def prompt_logprobs(self, index: int, logprobs: list[LogprobEntries]) -> None:
        pass

    def error(self, error: PyllmError) -> None:
        pass


def follow(recent: RecentRequests, clock: Clock, num_samples: int = 1) -> MeasuredSink:
    """A request of 10 prompt tokens, which comes now."""
    metrics = Metrics("tiny", MODEL, clock)
    return MeasuredSink(Discarded(), metrics.request(10, SamplingParams(n=num_samples)), recent)


def text_delta(num_tokens: int, cached: int = 0, finish: str | None = None) -> TextDelta:
    return TextDelta("", [5] * num_tokens, finish, cached_tokens=cached, start_times=StartTimes(0.25, 0.5))


def run(recent: RecentRequests, clock: Clock, *, pauses: tuple[float, ...], cached: int = 0) -> None:
    """A request with one token after each pause, which ends with the last."""
    sink = follow(recent, clock)
    for number, pause in enumerate(pauses, 1):
        clock.now += pause
        sink.delta(0, text_delta(1, cached, "stop" if number == len(pauses) else None))


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


def test_a_first_token_counts_when_it_comes(clock: Clock) -> None:
    recent = RecentRequests(clock)
    sink = follow(recent, clock)
    clock.now += 2.0
    sink.delta(0, text_delta(1))
    summary = recent.summary(60.0, STATS, 0)
    assert (summary.time_to_first_token.count, summary.time_to_first_token.max, summary.queue.max) == (1, 2.0, 0.25)
    assert (summary.num_requests, summary.end_to_end.count) == (0, 0)
    clock.now += 20.0
    sink.delta(0, text_delta(1, finish="stop"))
    summary = recent.summary(10.0, STATS, 0)
    assert (summary.num_requests, summary.end_to_end.max, summary.time_to_first_token.count) == (1, 22.0, 0)


def test_the_metrics_and_the_summary_have_one_measurement(clock: Clock) -> None:
    """Each look at this clock takes its time, so two looks at one delta would differ."""

    def slow() -> float:
        clock.now += 0.125
        return clock.now

    recent, metrics = RecentRequests(slow), Metrics("tiny", MODEL, slow)
    sink = MeasuredSink(Discarded(), metrics.request(10, SamplingParams()), recent)
    for finish in (None, None, "stop"):
        sink.delta(0, text_delta(1, finish=finish))
    summary = recent.summary(60.0, STATS, 0)
    assert summary.time_to_first_token.mean == metrics.first_token.sum == 0.125
    assert summary.inter_token_latency.mean * 2 == metrics.inter_token.sum == 0.25
    assert summary.time_per_output_token.mean == metrics.output_token_seconds.sum == 0.125
    assert summary.end_to_end.mean == metrics.request_seconds.sum == 0.5


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
    sink = follow(recent, clock, 2)
    clock.now += 1
    for sample in (1, 0):
        sink.delta(sample, text_delta(2, finish="stop"))
    summary = recent.summary(1.0, STATS, 0)
    assert (summary.num_requests, summary.prompt_tokens_per_second, summary.end_to_end.count) == (1, 10.0, 2)
    assert (summary.time_to_first_token.count, summary.queue.count) == (2, 1)


def test_a_request_without_a_token_has_no_first_token(clock: Clock) -> None:
    recent = RecentRequests(clock)
    follow(recent, clock).delta(0, text_delta(0, finish="abort"))
    summary = recent.summary(1.0, STATS, 0)
    assert (summary.num_requests, summary.time_to_first_token) == (1, Percentiles())


@pytest.mark.parametrize("window", [0, 0.0, -1, float("nan"), None, "60", True, [60]])
def test_a_window_is_a_number_above_0(window: object) -> None:
    with pytest.raises(RequestError, match=r"^window must be a number") as refused:
        check_window(window)  # type: ignore[arg-type]  # that is what is tested
    assert refused.value.parameter == "window"


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_percentiles_are_values_with_so_many_at_or_below_them(values: list[float]) -> None:
    found = percentiles(values)
    assert (found.count, found.max) == (len(values), max(values))
    for percent, value in ((50, found.p50), (90, found.p90), (99, found.p99)):
        assert value in values
        assert sum(other <= value for other in values) * 100 >= percent * len(values)
        assert sum(other < value for other in values) * 100 < percent * len(values)
