"""Prometheus families with one set of labels, and the merging of families by name. Knows no metric by name."""

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from pyllm.frontend.observability.histogram import Histogram

VLLM = "vllm"  # a metric that vLLM has, too
OURS = "pyllm"


class Families:
    """Makes families whose samples carry `labels`. A name is prefix and name with a colon between."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._labels = labels

    def gauge(self, prefix: str, name: str, text: str, value: float) -> Metric:
        """A value that may rise and fall."""
        return self._add(GaugeMetricFamily(f"{prefix}:{name}", text, labels=list(self._labels)), {(): value})

    def gauges(self, prefix: str, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        """Values that may rise and fall, by the values of another label."""
        family = GaugeMetricFamily(f"{prefix}:{name}", text, labels=[*self._labels, label])
        return self._add(family, {(kind,): value for kind, value in values.items()})

    def information(self, prefix: str, name: str, text: str, values: Mapping[str, str], value: float = 1) -> Metric:
        """Texts, as the labels of a gauge."""
        family = GaugeMetricFamily(f"{prefix}:{name}", text, labels=[*self._labels, *values])
        return self._add(family, {tuple(values.values()): value})

    def counter(self, prefix: str, name: str, text: str, value: float) -> Metric:
        """A number that only grows."""
        return self._add(CounterMetricFamily(f"{prefix}:{name}", text, labels=list(self._labels)), {(): value})

    def counters(self, prefix: str, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        """Numbers that only grow, by the values of another label."""
        family = CounterMetricFamily(f"{prefix}:{name}", text, labels=[*self._labels, label])
        return self._add(family, {(kind,): value for kind, value in values.items()})

    def histogram(self, name: str, text: str, histogram: Histogram) -> Metric:
        """One of vLLM's histograms."""
        return self.buckets(name, text, histogram.buckets(), histogram.sum)

    def buckets(self, name: str, text: str, buckets: list[tuple[str, float]], total: float) -> Metric:
        """One of vLLM's histograms, by its bounds and counts."""
        family = HistogramMetricFamily(f"{VLLM}:{name}", text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), buckets, total)
        return family

    def _add(self, family: GaugeMetricFamily | CounterMetricFamily, samples: Mapping[tuple[str, ...], float]) -> Metric:
        """The family with its samples, each by the values of its further labels."""
        for values, sample in samples.items():
            family.add_metric([*self._labels.values(), *values], sample)
        return family


def merged(families: Iterable[Metric]) -> list[Metric]:
    """One family of each name, with the samples of all; in the order in which the names come first."""
    found: dict[str, Metric] = {}
    for family in families:
        if (known := found.setdefault(family.name, family)) is not family:
            known.samples += family.samples
    return list(found.values())
