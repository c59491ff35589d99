"""The last seconds of an engine, as one struct: throughput, latencies, hit rates, memory. Knows no HTTP.

Latencies are exact; `metrics.py` has the histograms.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import takewhile

import msgspec

from pyllm.frontend.observability.core_metrics import num_waiting, share
from pyllm.frontend.observability.metrics import SampleTimes
from pyllm.parameters.arguments import check, number

MAX_SAMPLES = 10_000  # whose latencies are kept
MAX_PAUSES = 100_000
# Events within so many seconds are counted together, so that counts reach back for `MAX_WINDOW` seconds.
RESOLUTION = 0.01
MAX_WINDOW = 900.0


class Percentiles(msgspec.Struct, frozen=True):
    """Seconds; all 0 where nothing was measured (`count` 0)."""

    count: int = 0
    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    max: float = 0.0


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The last `window` seconds, or less if the engine is younger; 900 at most. Sizes are bytes, rates per second.

    Each latency counts when it is known: the first token's when it comes, though its request still runs. Latencies are
    those of the last 10,000 samples and of the last 100,000 deltas, where there were more.

    `time_to_first_token`, `inter_token_latency` (between two deltas), `time_per_output_token` (a sample's mean, its
    first token left out), `end_to_end` and `queue` (until the first step) are vLLM's. `prefix_cache_hit_rate` is the
    share of prompt tokens that the prefix cache had, `kv_cache_usage` that of blocks in use now. `memory_bytes` is the
    PSS of the engine's processes, `device_bytes` their memory on cards, None where that is not known.
    """

    window: float
    num_requests: int
    num_running: int
    num_waiting: int
    requests_per_second: float
    prompt_tokens_per_second: float
    generation_tokens_per_second: float
    time_to_first_token: Percentiles
    inter_token_latency: Percentiles
    time_per_output_token: Percentiles
    end_to_end: Percentiles
    queue: Percentiles
    prefix_cache_hit_rate: float
    kv_cache_usage: float
    memory_bytes: int
    device_bytes: int | None = None


class _Counts(msgspec.Struct, gc=False):
    """Counts of the `RESOLUTION` seconds from `at` on."""

    at: float
    num_tokens: int = 0
    num_requests: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0


class RecentRequests:
    """The times and counts of recent requests, as `RequestMetrics` measures them, by the same `clock`, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._since = clock()
        self._ended: deque[SampleTimes] = deque(maxlen=MAX_SAMPLES)
        self._first_tokens: deque[tuple[float, float]] = deque(maxlen=MAX_SAMPLES)
        self._queues: deque[tuple[float, float]] = deque(maxlen=MAX_SAMPLES)
        self._pauses: deque[tuple[float, float]] = deque(maxlen=MAX_PAUSES)
        self._counts: deque[_Counts] = deque(maxlen=int(MAX_WINDOW / RESOLUTION))

    def summary(
        self, window: float, stats: dict[str, int], memory_bytes: int, device_bytes: int | None = None
    ) -> Summary:
        """The last `window` seconds, which `check_window` checks. `stats` are the core's current figures."""
        now = self._clock()
        window = max(1e-9, min(window, now - self._since, MAX_WINDOW))
        after = now - window
        ended = list(takewhile(lambda sample: sample.at >= after, reversed(self._ended)))
        counts = list(takewhile(lambda entry: entry.at >= after, reversed(self._counts)))
        num_prompt_tokens = sum(entry.num_prompt_tokens for entry in counts)
        num_requests = sum(entry.num_requests for entry in counts)
        return Summary(
            window=window,
            num_requests=num_requests,
            num_running=stats["num_running"],
            num_waiting=num_waiting(stats),
            requests_per_second=num_requests / window,
            prompt_tokens_per_second=num_prompt_tokens / window,
            generation_tokens_per_second=sum(entry.num_tokens for entry in counts) / window,
            time_to_first_token=percentiles(_values_since(after, self._first_tokens)),
            inter_token_latency=percentiles(_values_since(after, self._pauses)),
            time_per_output_token=percentiles([sample.per_token for sample in ended]),
            end_to_end=percentiles([sample.end_to_end for sample in ended]),
            queue=percentiles(_values_since(after, self._queues)),
            prefix_cache_hit_rate=share(sum(entry.num_cached_tokens for entry in counts), num_prompt_tokens),
            kv_cache_usage=share(stats["num_used_blocks"], stats["num_blocks"]),
            memory_bytes=memory_bytes,
            device_bytes=device_bytes,
        )

    def add_request(self, at: float, num_prompt_tokens: int, num_cached_tokens: int, queue: float | None) -> None:
        """Count a request with its first token; `queue` are its seconds in the queue, if known."""
        counts = self._counts_at(at)
        counts.num_prompt_tokens += num_prompt_tokens
        counts.num_cached_tokens += num_cached_tokens
        if queue is not None:
            self._queues.append((at, queue))

    def add_tokens(self, at: float, num_tokens: int, seconds: float, is_first: bool) -> None:
        """Count tokens of a sample, `seconds` after its last ones, or, for the first, after its request's arrival."""
        self._counts_at(at).num_tokens += num_tokens
        (self._first_tokens if is_first else self._pauses).append((at, seconds))

    def add_ended(self, sample: SampleTimes, is_last: bool) -> None:
        """Count the end of a sample; `is_last` also ends its request."""
        self._counts_at(sample.at).num_requests += is_last
        self._ended.append(sample)

    def _counts_at(self, at: float) -> _Counts:
        """The counts of the interval that this time is in."""
        if not self._counts or at - self._counts[-1].at >= RESOLUTION:
            self._counts.append(_Counts(at))
        return self._counts[-1]


def check_window(window: float) -> float:
    """The window of a summary, in seconds; raises RequestError where it is no number above 0."""
    window = number("window", window)
    check("window", window, window > 0.0, "a number of seconds above 0")
    return window


def _values_since(after: float, entries: deque[tuple[float, float]]) -> list[float]:
    """The values of the entries that are not older than `after`."""
    return [value for _, value in takewhile(lambda entry: entry[0] >= after, reversed(entries))]


def percentiles(values: Sequence[float | None]) -> Percentiles:
    """Percentiles of the values that are not None, by nearest rank: the lowest value with so many at or below it."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return Percentiles()

    def rank(percent: int) -> float:
        return known[-(-len(known) * percent // 100) - 1]

    return Percentiles(len(known), sum(known) / len(known), rank(50), rank(90), rank(99), known[-1])
