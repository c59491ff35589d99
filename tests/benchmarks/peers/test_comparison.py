"""Which peer a row is compared with, and what is said of the ratio."""

from typing import Any

import pytest

from benchmarks.peers.comparison import ROWS, compare


def line(peer: str, workload: str, **figures: float) -> dict[str, Any]:
    return {"peer": peer, "workload": workload, **figures}


def answers(*lines: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {answer["row"]: answer for answer in compare(lines)}


def test_without_measurements_every_row_says_so() -> None:
    assert [answer["verdict"] for answer in compare([])] == ["not measured"] * len(ROWS)
    only_ours = answers(line("pyllm", "streams-1", output_tokens_per_s=1.0, ttft_p50_ms=1.0))
    assert only_ours["TTFT p50, concurrency 1"]["verdict"] == "not measured"


@pytest.mark.parametrize(
    ("rate", "verdict"), [(139.0, "too little"), (140.0, "at least"), (199.0, "at least"), (200.0, "aim reached")]
)
def test_rates_are_compared_with_the_highest(rate: float, verdict: str) -> None:
    answer = answers(
        line("llama.cpp-q8_0-fa-on", "streams-1", output_tokens_per_s=90.0, ttft_p50_ms=1.0),
        line("vllm-bf16", "streams-1", output_tokens_per_s=100.0, ttft_p50_ms=1.0),
        line("pyllm-bfloat16", "streams-1", output_tokens_per_s=500.0, ttft_p50_ms=1.0),
        line("pyllm", "streams-1", output_tokens_per_s=rate, ttft_p50_ms=1.0),
    )["output tokens/s, concurrency 1"]
    assert (answer["best_peer"], answer["peer"], answer["pyllm"]) == ("vllm-bf16", 100.0, rate)
    assert (answer["ratio"], answer["verdict"]) == (rate / 100, verdict)


@pytest.mark.parametrize(
    ("latency", "verdict"), [(41.0, "too little"), (40.0, "at least"), (26.0, "at least"), (25.0, "aim reached")]
)
def test_latencies_are_compared_with_the_lowest(latency: float, verdict: str) -> None:
    answer = answers(
        line("llama.cpp-q8_0-fa-on", "streams-8", output_tokens_per_s=1.0, ttft_p50_ms=100.0),
        line("llama.cpp-q8_0-fa-off", "streams-8", output_tokens_per_s=1.0, ttft_p50_ms=120.0),
        line("pyllm", "streams-8", output_tokens_per_s=1.0, ttft_p50_ms=latency),
    )["TTFT p50, concurrency 8"]
    assert (answer["best_peer"], answer["verdict"]) == ("llama.cpp-q8_0-fa-on", verdict)


def test_the_last_measurement_counts_and_some_rows_are_only_measured() -> None:
    shared = "requests/s, 80 shared tokens, against no prefix cache"
    without = line("pyllm-no-prefix-cache", "shared-80", requests_per_s=2.0)
    first, second = (line("pyllm-prefix-cache", "shared-80", requests_per_s=rate) for rate in (1.0, 2.8))
    assert answers(first, without)[shared]["verdict"] == "measured"
    assert answers(first, without, second)[shared]["ratio"] == 1.4
