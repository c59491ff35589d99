"""Figures of a load from its requests' records, under vLLM's names and with its definitions. Pure functions.

Latencies are seconds in records, milliseconds in figures. Knows neither clocks nor servers.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import numpy as np

from pyllm.bench.answer_reading import RequestRecord
from pyllm.bench.bench_defaults import PERCENTILES, REPORTED_METRICS
from pyllm.bench.load_run import LoadResult

MILLISECONDS = 1000.0
Figures = dict[str, float]

# The values of each metric that a request has.
_VALUES: Mapping[str, Callable[[RequestRecord], Sequence[float]]] = {
    "ttft": lambda record: [record.ttft],
    "tpot": lambda record: [] if record.tpot is None else [record.tpot],
    "itl": lambda record: record.itl,
    "e2el": lambda record: [record.e2el],
    "client_queue_time": lambda record: [record.sent - record.due],
    "e2el_including_client_queue": lambda record: [record.ended - record.due],
}


class Selection(msgspec.Struct, frozen=True):
    """The latencies and percentiles to report, and the `goodput` targets in milliseconds that make a request good."""

    metrics: tuple[str, ...] = REPORTED_METRICS
    percentiles: tuple[float, ...] = PERCENTILES
    goodput: Mapping[str, float] = {}


def samples(records: Iterable[RequestRecord], metric: str) -> list[float]:
    """Every value of a metric in seconds, of the requests that did not fail."""
    return [value for record in records if not record.error for value in _VALUES[metric](record)]


def meets(record: RequestRecord, goodput: Mapping[str, float]) -> bool:
    """Whether a request is good: it did not fail, and each of its latencies is within its target."""
    if record.error:
        return False
    latency = {"ttft": record.ttft, "tpot": record.tpot or 0.0, "e2el": record.e2el}
    return all(latency[name] * MILLISECONDS <= target for name, target in goodput.items())


def good_share(result: LoadResult, goodput: Mapping[str, float]) -> float:
    """The share of the requests sent that met all targets; failed ones count as sent."""
    return sum(meets(record, goodput) for record in result.records) / max(len(result.records), 1)


def summarise(result: LoadResult, selection: Selection) -> Figures:
    """The figures of a load by vLLM's names; latencies are 0 where no request was completed."""
    good = [record for record in result.records if not record.error]
    seconds = result.seconds or 1.0
    input_tokens = sum(record.input_tokens for record in good)
    output_tokens = sum(record.output_tokens for record in good)
    figures: Figures = {
        "duration": result.seconds,
        "completed": len(good),
        "failed": len(result.records) - len(good),
        "unfinished": result.unfinished,
        "total_input_tokens": input_tokens,
        "total_output_tokens": output_tokens,
        "request_throughput": len(good) / seconds,
        "output_throughput": output_tokens / seconds,
        "total_token_throughput": (input_tokens + output_tokens) / seconds,
        "max_output_tokens_per_s": max_output_tokens_per_s(good),
        "max_concurrent_requests": max_concurrent_requests(good),
        "client_cores": result.client_cores,
    }
    if selection.goodput:
        figures["request_goodput"] = sum(meets(record, selection.goodput) for record in good) / seconds
    for metric in selection.metrics:
        figures |= latency_figures(metric, samples(good, metric), selection.percentiles)
    return figures


def latency_figures(metric: str, seconds: Sequence[float], percentiles: Iterable[float]) -> Figures:
    """Mean, median, standard deviation and percentiles in milliseconds; percentiles interpolate as in numpy."""
    values = np.asarray(seconds if len(seconds) else [0.0]) * MILLISECONDS
    figures: Figures = {
        f"mean_{metric}_ms": float(np.mean(values)),
        f"median_{metric}_ms": float(np.median(values)),
        f"std_{metric}_ms": float(np.std(values)),
    }
    for percentile in percentiles:
        figures[f"p{percentile:g}_{metric}_ms"] = float(np.percentile(values, percentile))
    return figures


def max_concurrent_requests(records: Iterable[RequestRecord]) -> int:
    """The most requests that ran at the same time; one that ends when another begins does not overlap it."""
    changes = [change for record in records for change in ((record.sent, 1), (record.ended, -1))]
    return max(itertools.accumulate((step for _, step in sorted(changes)), initial=0))


def max_output_tokens_per_s(records: Sequence[RequestRecord]) -> float:
    """The most tokens in any second since the first request; an answer's tokens are spread evenly over its chunks."""
    seconds = defaultdict[int, float](float)
    begin = min((record.sent for record in records), default=0.0)
    for record in records:
        for arrival in record.arrivals:
            seconds[int(arrival - begin)] += record.output_tokens / len(record.arrivals)
    return max(seconds.values(), default=0.0)


def errors_by_name(records: Iterable[RequestRecord]) -> dict[str, int]:
    """The number of failed requests for each reason, the most frequent first."""
    return dict(Counter(record.error for record in records if record.error).most_common())
