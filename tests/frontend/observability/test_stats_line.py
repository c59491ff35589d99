from pyllm.frontend.observability.stats_line import StatsLine

IDLE = {
    "num_running": 0,
    "num_waiting": 0,
    "num_held": 0,
    "num_loading": 0,
    "num_used_blocks": 0,
    "num_blocks": 200,
    "prefix_queries": 0,
    "prefix_hits": 0,
}


def test_a_line_says_what_happened_since_the_one_before() -> None:
    lines = StatsLine()
    busy = {**IDLE, "num_running": 3, "num_waiting": 1, "num_held": 1, "num_used_blocks": 25, "prefix_queries": 80}
    assert lines.line({**busy, "prefix_hits": 20}, 100, 50, 10.0) == (
        "Avg prompt throughput: 10.0 tokens/s, Avg generation throughput: 5.0 tokens/s, Running: 3 reqs, "
        "Waiting: 2 reqs, GPU KV cache usage: 12.5%, Prefix cache hit rate: 25.0%"
    )
    later = {**busy, "prefix_queries": 180, "prefix_hits": 95}
    line = lines.line(later, 100, 250, 20.0)
    assert line is not None
    assert "prompt throughput: 0.0 tokens/s, Avg generation throughput: 10.0 tokens/s" in line
    assert line.endswith("hit rate: 75.0%")


def test_an_idle_engine_says_so_once() -> None:
    lines = StatsLine()
    assert lines.line(IDLE, 0, 0, 10.0) is None
    assert lines.line(IDLE, 9, 9, 10.0) is not None
    idle = lines.line(IDLE, 9, 9, 10.0)
    assert idle is not None
    assert "Running: 0 reqs" in idle
    assert lines.line(IDLE, 9, 9, 10.0) is None


def test_the_next_core_counts_from_zero() -> None:
    lines = StatsLine()
    lines.line({**IDLE, "prefix_queries": 100, "prefix_hits": 100}, 9, 9, 10.0)
    line = lines.line({**IDLE, "prefix_queries": 10, "prefix_hits": 1}, 19, 9, 10.0)
    assert line is not None
    assert line.endswith("hit rate: 10.0%")
