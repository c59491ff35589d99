"""Prometheus' families as structs."""

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from pyllm.frontend.observability.metrics_snapshot import Counter, Gauge, Histogram, read_families


def test_each_family_and_set_of_labels_is_a_struct() -> None:
    counter = CounterMetricFamily("vllm:tokens", "", labels=["reason"])
    counter.add_metric(["stop"], 3)
    counter.add_metric(["length"], 4)
    histogram = HistogramMetricFamily("vllm:seconds", "", labels=["model"])
    histogram.add_metric(["tiny"], [("0.5", 1), ("+Inf", 3)], 2.5)
    gauge = GaugeMetricFamily("vllm:running", "")
    gauge.add_metric([], 7)
    assert read_families([counter, histogram, gauge]) == [
        Counter("vllm:tokens", {"reason": "stop"}, 3),
        Counter("vllm:tokens", {"reason": "length"}, 4),
        Histogram("vllm:seconds", {"model": "tiny"}, 3, 2.5, {"0.5": 1, "+Inf": 3}),
        Gauge("vllm:running", {}, 7),
    ]
