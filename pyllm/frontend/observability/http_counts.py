"""HTTP requests by method, route and status, and their seconds, under the names of vLLM's server.

Names, buckets and groups are those of `prometheus-fastapi-instrumentator`: a status is 2xx or 4xx, and a path without a
route is `none`. Knows no connection.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

BOUNDS = (0.1, 0.5, 1.0)
# Numbers of a group: the requests, those up to each bound and above all bounds, and the sum of their seconds.
_NUM_NUMBERS = len(BOUNDS) + 3
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
NO_ROUTE = "none"

# Numbers by method, route and status, joined by spaces.
Grouped = Mapping[str, Sequence[float]]


class HttpCounts:
    """The requests that one API process, or all of them together, answered."""

    def __init__(self) -> None:
        self.groups: dict[str, list[float]] = {}

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request, whose answer has ended. `route` has names in place of its parameters."""
        known = method if method in _METHODS else "other"
        numbers = self.groups.setdefault(f"{known} {route} {status // 100}xx", [0.0] * _NUM_NUMBERS)
        numbers[0] += 1
        numbers[1 + bisect_left(BOUNDS, seconds)] += 1
        numbers[-1] += seconds

    def collect(self) -> Iterator[Metric]:
        """The families; none before the first request."""
        if not self.groups:
            return
        text = "Total number of requests by method, status and handler."
        requests = CounterMetricFamily("http_requests", text, labels=["method", "status", "handler"])
        durations: dict[tuple[str, str], list[float]] = {}
        for name, numbers in self.groups.items():
            method, route, status = name.split(" ")
            requests.add_metric([method, status, route], numbers[0])
            sums = durations.setdefault((method, route), [0.0] * _NUM_NUMBERS)
            durations[method, route] = [left + right for left, right in zip(sums, numbers, strict=True)]
        yield requests
        text = "Seconds from a request's head to the end of its answer, by method and handler."
        family = HistogramMetricFamily("http_request_duration_seconds", text, labels=["method", "handler"])
        for labels, numbers in durations.items():
            total, buckets = 0.0, []
            for bound, count in zip([*map(str, BOUNDS), "+Inf"], numbers[1:-1], strict=True):
                total += count
                buckets.append((bound, total))
            family.add_metric(list(labels), buckets, numbers[-1])
        yield family
