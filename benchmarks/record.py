"""What one benchmark prints."""

import statistics
from collections.abc import Sequence
from typing import TypedDict


class Record(TypedDict, total=False):
    """A figure; `rows` and `tokens` say for which case, `p99` what the slowest steps cost."""

    name: str
    value: float
    unit: str
    rows: int
    tokens: int
    p99: float


def percentiles(name: str, seconds: Sequence[float], **case: int) -> Record:
    """Median and 99th percentile of durations, in microseconds."""
    cuts = statistics.quantiles(seconds, n=100)
    record: Record = {"name": name, "value": round(cuts[49] * 1e6, 1), "unit": "us", "p99": round(cuts[98] * 1e6, 1)}
    record.update(case)  # type: ignore[typeddict-item] - `rows` and `tokens` only
    return record
