"""What an engine did in the last seconds, as one struct: throughput, latencies, hit rates, memory. Knows no HTTP.

Latencies are exact; `metrics.py` has the histograms.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import takewhile

import msgspec

from pyllm.client.columns import StartTimes
from pyllm.frontend.observability.metrics import num_waiting, share

MAX_SAMPLES = 10_000  # whose latencies are kept
MAX_PAUSES = 100_000
# What comes within so many seconds is counted together, so that counts reach back for `MAX_WINDOW` seconds.
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

    Latencies are those of the last 10,000 samples that ended and of the last 100,000 deltas, where there were more.

    `time_to_first_token`, `inter_token_latency` (between two deltas), `time_per_output_token` (a sample's mean, its
    first token left out), `end_to_end` and `queue` (until the first step) are vLLM's. `prefix_cache_hit_rate` is the
    share of prompt tokens that the prefix cache had, `kv_cache_usage` that of blocks in use now. `memory_bytes` is the
    PSS of the engine's processes, `device_bytes` what they have on cards, None where that is not known.
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


class _Ended(msgspec.Struct, frozen=True, gc=False):
    """The latencies of a sample that has ended."""

    at: float
    first_token: float | None
    per_token: float | None
    end_to_end: float
    queue: float | None


class _Counts(msgspec.Struct, gc=False):
    """What came within `RESOLUTION` seconds from `at` on."""

    at: float
    num_tokens: int = 0
    num_requests: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0


class RecentRequests:
    """The times of what has ended not long ago. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._since = clock()
        self._ended: deque[_Ended] = deque(maxlen=MAX_SAMPLES)
        self._pauses: deque[tuple[float, float]] = deque(maxlen=MAX_PAUSES)
        self._counts: deque[_Counts] = deque(maxlen=int(MAX_WINDOW / RESOLUTION))

    def follow(self, num_prompt_tokens: int, num_samples: int) -> "RequestTimes":
        """Follow one request, which comes now."""
        return RequestTimes(self, num_prompt_tokens, num_samples)

    def summary(
        self, window: float, stats: dict[str, int], memory_bytes: int, device_bytes: int | None = None
    ) -> Summary:
        """The last `window` seconds. `stats` are the core's, for what is so now."""
        now = self.clock()
        window = max(1e-9, min(window, now - self._since, MAX_WINDOW))
        after = now - window
        ended = list(takewhile(lambda sample: sample.at >= after, reversed(self._ended)))
        counts = list(takewhile(lambda entry: entry.at >= after, reversed(self._counts)))
        pauses = [pause for _, pause in takewhile(lambda entry: entry[0] >= after, reversed(self._pauses))]
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
            time_to_first_token=percentiles([sample.first_token for sample in ended]),
            inter_token_latency=percentiles(pauses),
            time_per_output_token=percentiles([sample.per_token for sample in ended]),
            end_to_end=percentiles([sample.end_to_end for sample in ended]),
            queue=percentiles([sample.queue for sample in ended]),
            prefix_cache_hit_rate=share(sum(entry.num_cached_tokens for entry in counts), num_prompt_tokens),
            kv_cache_usage=share(stats["num_used_blocks"], stats["num_blocks"]),
            memory_bytes=memory_bytes,
            device_bytes=device_bytes,
        )

    def counts_at(self, now: float) -> _Counts:
        """What counts what comes now."""
        if not self._counts or now - self._counts[-1].at >= RESOLUTION:
            self._counts.append(_Counts(now))
        return self._counts[-1]

    def add_pause(self, now: float, pause: float) -> None:
        """A sample got tokens, so many seconds after its last ones."""
        self._pauses.append((now, pause))

    def add_ended(self, sample: _Ended) -> None:
        """A sample has ended."""
        self._ended.append(sample)


class RequestTimes:
    """One request's times, as they happen."""

    def __init__(self, recent: RecentRequests, num_prompt_tokens: int, num_samples: int) -> None:
        self._recent = recent
        self._arrival = recent.clock()
        self._num_prompt_tokens = num_prompt_tokens
        self._num_cached_tokens = 0
        self._num_open = num_samples
        self._queue: float | None = None
        self._first: list[float | None] = [None] * num_samples
        self._last = [0.0] * num_samples
        self._num_tokens = [0] * num_samples

    def delta(self, sample: int, num_tokens: int, num_cached_tokens: int, start: StartTimes | None) -> None:
        """A sample got tokens; `start` comes with the first of them."""
        now = self._recent.clock()
        self._num_cached_tokens = max(self._num_cached_tokens, num_cached_tokens)
        if start is not None and self._queue is None:
            self._queue = start.queue
        if not num_tokens:
            return
        self._recent.counts_at(now).num_tokens += num_tokens
        if self._first[sample] is None:
            self._first[sample] = now
        else:
            self._recent.add_pause(now, now - self._last[sample])
        self._last[sample] = now
        self._num_tokens[sample] += num_tokens

    def finish(self, sample: int) -> None:
        """A sample has ended."""
        now, first, number = self._recent.clock(), self._first[sample], self._num_tokens[sample]
        self._num_open -= 1
        is_first = self._num_open == len(self._first) - 1
        counts = self._recent.counts_at(now)
        if is_first:
            counts.num_prompt_tokens += self._num_prompt_tokens
            counts.num_cached_tokens += self._num_cached_tokens
        if not self._num_open:
            counts.num_requests += 1
        self._recent.add_ended(
            _Ended(
                at=now,
                first_token=None if first is None else first - self._arrival,
                per_token=None if first is None or number < 2 else (self._last[sample] - first) / (number - 1),
                end_to_end=now - self._arrival,
                queue=self._queue if is_first else None,
            )
        )


def percentiles(values: Sequence[float | None]) -> Percentiles:
    """Of those that are there, each percentile being the lowest value with so many at or below it (nearest rank)."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return Percentiles()

    def rank(percent: int) -> float:
        return known[-(-len(known) * percent // 100) - 1]

    return Percentiles(len(known), sum(known) / len(known), rank(50), rank(90), rank(99), known[-1])
