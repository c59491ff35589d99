"""The figures are vLLM's by definition, and hold for any records."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllm.bench.answer_reading import RequestRecord
from pyllm.bench.load_run import LoadResult
from pyllm.bench.request_metrics import (
    Selection,
    errors_by_name,
    good_share,
    latency_figures,
    max_concurrent_requests,
    max_output_tokens_per_s,
    meets,
    samples,
    summarise,
)

# 2 s to the first of 5 tokens, then gaps of 1, 1 and 2 s; the last chunk has two.
SLOW = RequestRecord(0, 0.0, 1.0, [3.0, 4.0, 5.0, 7.0], 7.0, 10, 5)
FAST = RequestRecord(1, 1.5, 2.0, [2.5], 2.5, 20, 1)
FAILED = RequestRecord(2, 0.0, 0.0, error="HTTP 429: too many")
RESULT = LoadResult([SLOW, FAST, FAILED], 10.0, 0.25, 4)


def test_figures_of_a_load() -> None:
    figures = summarise(RESULT, Selection(("ttft", "tpot", "itl", "e2el"), (50.0, 99.9), {"ttft": 1000.0}))
    assert (figures["completed"], figures["failed"], figures["unfinished"]) == (2, 1, 4)
    assert (figures["total_input_tokens"], figures["total_output_tokens"]) == (30, 6)
    assert (figures["request_throughput"], figures["output_throughput"]) == (0.2, 0.6)
    assert (figures["total_token_throughput"], figures["request_goodput"]) == (3.6, 0.1)
    assert (figures["max_concurrent_requests"], figures["client_cores"]) == (2, 0.25)
    assert (figures["mean_ttft_ms"], figures["std_ttft_ms"]) == (1250.0, 750.0)
    assert figures["mean_tpot_ms"] == figures["p50_tpot_ms"] == 1000.0  # (7 - 3) / (5 - 1); one token has none
    assert figures["mean_itl_ms"] == pytest.approx(4000 / 3)
    assert (figures["median_itl_ms"], figures["p99.9_e2el_ms"]) == pytest.approx((1000.0, 5994.5))


def test_waiting_for_a_turn_is_counted_apart() -> None:
    assert samples(RESULT.records, "client_queue_time") == [1.0, 0.5]
    assert samples(RESULT.records, "e2el_including_client_queue") == [7.0, 1.0]


def test_goodput_needs_every_target() -> None:
    assert meets(SLOW, {"ttft": 2000.0, "tpot": 1000.0, "e2el": 6000.0})
    assert not meets(SLOW, {"ttft": 1999.0})
    assert not meets(SLOW, {"tpot": 999.0})
    assert meets(FAST, {"tpot": 0.0})  # One token has no time per further token.
    assert not meets(FAILED, {})
    assert good_share(RESULT, {"e2el": 1000.0}) == pytest.approx(1 / 3)


def test_all_failed_is_no_division_by_zero() -> None:
    figures = summarise(LoadResult([FAILED, FAILED], 0.0, 0.0), Selection())
    assert (figures["completed"], figures["failed"], figures["mean_ttft_ms"], figures["p99_e2el_ms"]) == (0, 2, 0, 0)
    assert errors_by_name([FAILED, SLOW, FAILED]) == {"HTTP 429: too many": 2}


TIMES = st.floats(0, 1e4)


@st.composite
def records(draw: st.DrawFn) -> RequestRecord:
    sent, *arrivals = sorted(draw(st.lists(TIMES, min_size=2, max_size=8)))
    return RequestRecord(0, sent, sent, arrivals, arrivals[-1], 1, draw(st.integers(len(arrivals), 100)))


@given(st.lists(records(), max_size=8))
def test_what_holds_for_any_records(measured: list[RequestRecord]) -> None:
    figures = summarise(LoadResult(measured, 1.0, 0.0), Selection(percentiles=(0.0, 50.0, 90.0, 100.0)))
    for metric in ("ttft", "tpot", "itl", "e2el"):
        p0, p50, p90, p100 = (figures[f"p{percent}_{metric}_ms"] for percent in (0, 50, 90, 100))
        rounding = 1e-9 * p100
        assert 0 <= p0 <= p50 + rounding <= p90 + 2 * rounding <= p100 + 3 * rounding
        assert p50 == pytest.approx(figures[f"median_{metric}_ms"])
        assert p0 - rounding <= figures[f"mean_{metric}_ms"] <= p100 + rounding
    assert figures["max_output_tokens_per_s"] <= figures["total_output_tokens"] + 1e-6
    assert figures["max_concurrent_requests"] <= len(measured)
    for record in measured:  # The gaps and the first token make up the whole.
        assert record.ttft + sum(record.itl) == pytest.approx(record.e2el, abs=1e-6)


@given(st.lists(st.tuples(TIMES, st.floats(0.001, 100)), min_size=1, max_size=30))
def test_concurrency_is_that_of_some_moment(spans: list[tuple[float, float]]) -> None:
    measured = [RequestRecord(0, 0.0, begin, [begin], begin + length) for begin, length in spans]
    by_hand = max(sum(r.sent <= moment.sent < r.ended for r in measured) for moment in measured)
    assert max_concurrent_requests(measured) == by_hand


def test_peak_of_tokens_is_of_one_second() -> None:
    assert max_output_tokens_per_s([SLOW]) == 1.25  # 5 tokens in 4 chunks, never two in a second
    assert latency_figures("ttft", [], [99])["p99_ttft_ms"] == 0.0
