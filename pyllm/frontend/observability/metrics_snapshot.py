"""The metrics of an engine as plain structs, for programs; names are those of vLLM's `vllm.v1.metrics.reader`."""

from collections.abc import Iterable

import msgspec
from prometheus_client.metrics_core import Metric as Family


class Counter(msgspec.Struct, frozen=True):
    """A number that only grows; its name ends without `_total`."""

    name: str
    labels: dict[str, str]
    value: float


class Gauge(msgspec.Struct, frozen=True):
    """A value that may rise and fall."""

    name: str
    labels: dict[str, str]
    value: float


class Histogram(msgspec.Struct, frozen=True):
    """The number of values up to each bound; the last bound is `+Inf`."""

    name: str
    labels: dict[str, str]
    count: int
    sum: float
    buckets: dict[str, int]


Metric = Counter | Gauge | Histogram


def read_families(families: Iterable[Family]) -> list[Metric]:
    """One struct for each family and set of labels, in their order."""
    metrics: list[Metric] = []
    for family in families:
        if family.type == "histogram":
            metrics += _histograms(family)
        else:
            kind = Counter if family.type == "counter" else Gauge
            metrics += [
                kind(family.name, dict(sample.labels), sample.value)
                for sample in family.samples
                if not sample.name.endswith("_created")
            ]
    return metrics


def _histograms(family: Family) -> list[Metric]:
    found: dict[tuple[tuple[str, str], ...], Histogram] = {}
    for sample in family.samples:
        labels = {name: value for name, value in sample.labels.items() if name != "le"}
        key = tuple(sorted(labels.items()))
        one = found.get(key, Histogram(family.name, labels, 0, 0.0, {}))
        if sample.name.endswith("_bucket"):
            one.buckets[sample.labels["le"]] = int(sample.value)
        elif sample.name.endswith("_sum"):
            one = msgspec.structs.replace(one, sum=sample.value)
        elif sample.name.endswith("_count"):
            one = msgspec.structs.replace(one, count=int(sample.value))
        found[key] = one
    return list(found.values())
