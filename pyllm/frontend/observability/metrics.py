"""The one list of metrics: counts this API process's requests, and asks the core and the other processes for theirs.

Names with `vllm:` have vLLM's meaning and bounds; metrics that vLLM lacks begin with `pyllm:`. All are plain numbers,
and become Prometheus families when scraped: a token costs two additions.
"""

import math
import time
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from pyllm.client.columns import StartTimes
from pyllm.client.core_connection import Condition, ConnectionCounts
from pyllm.frontend.http.ignored_fields import IgnoredFields
from pyllm.frontend.observability.histogram import (
    FIRST_TOKEN_BOUNDS,
    INTER_TOKEN_BOUNDS,
    NUM_SAMPLES_BOUNDS,
    REQUEST_BOUNDS,
    Histogram,
    token_bounds,
)
from pyllm.frontend.shared.messages import LIMIT_REASONS, QUEUE_REASONS, REASONS
from pyllm.frontend.shared.totals import Row, decode_row, encode_row
from pyllm.frontend.text.encoding_threads import EncodingCounts
from pyllm.supervision.process_samples import ProcessSample
from pyllm.wire.messages import FinishCode, ModelInfo

CONTENT_TYPE = "text/plain; version=0.0.4"  # the charset is appended by the framework

FINISH_REASONS = tuple(code.name.lower() for code in FinishCode if code)

VLLM = "vllm"
OURS = "pyllm"

# Prefix, name, text, and the core's figure that it is; what is made of several figures is in `Metrics`.
GAUGES = (
    (VLLM, "num_requests_running", "Requests that are being computed.", "num_running"),
    (OURS, "num_requests_held", "Requests that are held back.", "num_held"),
    (OURS, "num_requests_loading", "Requests that wait for keys and values from outside.", "num_loading"),
    (OURS, "num_pinned_blocks", "Blocks that pins keep from eviction.", "num_pinned_blocks"),
    (OURS, "num_suspects", "Requests that run alone or wait to, as they may end workers or cores.", "num_suspects"),
)
COUNTERS = (
    (VLLM, "num_preemptions", "Preemptions.", "num_preemptions"),
    (OURS, "num_requests_expired", "Requests that their deadline ended.", "num_expired"),
    (VLLM, "prefix_cache_queries", "Prompt tokens looked up.", "prefix_queries"),
    (VLLM, "external_prefix_cache_hits", "Prompt tokens found on the host.", "host_prefix_hits"),
    (OURS, "num_failed_kv_loads", "Loads that brought less than they should.", "num_failed_loads"),
    (VLLM, "spec_decode_num_draft_tokens", "Draft tokens verified.", "num_drafts"),
    (VLLM, "spec_decode_num_accepted_tokens", "Draft tokens that became output.", "num_accepted_drafts"),
    (OURS, "num_scheduled_steps", "Steps planned.", "num_steps"),
    (OURS, "num_scheduled_tokens", "Tokens planned.", "num_computed_tokens"),
    (OURS, "recoveries", "Times that workers were lost and started anew.", "num_recoveries"),
    (OURS, "quarantine_failures", "Requests that failed because they ended workers.", "num_quarantine_failures"),
)

# The core's figures that count the steps of at most so many tokens, by the bound that follows.
STEPS_UP_TO = "iteration_tokens_le_"

# What each API process counts for itself, and what is shown as the sum of all.
COUNTED = (
    *("prompt_tokens", "cached_prompt_tokens", "generation_tokens", "finished"),
    *("rejected", "degradations", "encoding", "first_token", "inter_token", "request_seconds"),
    *("queue_seconds", "prefill_seconds", "decode_seconds", "inference_seconds", "output_token_seconds"),
    *("request_prompt_tokens", "request_generation_tokens", "longest_sample_tokens", "request_num_samples"),
    "connection",
)

# What an API process gives up so as not to die. The core's own, in `num_degradations`, is a lower budget of tokens.
DEGRADATIONS = ("host_memory",)
CORE_DEGRADATION = "device_memory"

Stats = Mapping[str, int]


class Metrics(Collector):
    """All metrics of one API process."""

    def __init__(
        self,
        model_name: str,
        model: ModelInfo,
        clock: Callable[[], float] = time.perf_counter,
        connection: ConnectionCounts | None = None,
    ) -> None:
        self.clock = clock
        self.prompt_tokens = 0
        self.cached_prompt_tokens = 0
        self.generation_tokens = 0
        self.encoding = EncodingCounts()
        self.connection = connection or ConnectionCounts()
        self.finished = dict.fromkeys(FINISH_REASONS, 0)
        self.rejected = dict.fromkeys(REASONS, 0)
        self.degradations = dict.fromkeys(DEGRADATIONS, 0)
        self.ignored_fields = IgnoredFields()
        self.first_token = Histogram(FIRST_TOKEN_BOUNDS)
        self.inter_token = Histogram(INTER_TOKEN_BOUNDS)
        self.request_seconds = Histogram(REQUEST_BOUNDS)
        self.queue_seconds = Histogram(REQUEST_BOUNDS)
        self.prefill_seconds = Histogram(REQUEST_BOUNDS)
        self.decode_seconds = Histogram(REQUEST_BOUNDS)
        self.inference_seconds = Histogram(REQUEST_BOUNDS)
        self.output_token_seconds = Histogram(INTER_TOKEN_BOUNDS)
        self.request_prompt_tokens = Histogram(token_bounds(model.max_model_len))
        self.request_generation_tokens = Histogram(token_bounds(model.max_model_len))
        self.longest_sample_tokens = Histogram(token_bounds(model.max_model_len))
        self.request_num_samples = Histogram(NUM_SAMPLES_BOUNDS)
        self._model = model
        self._labels = {"model_name": model_name, "engine": "0"}
        self._stats: Stats = {}
        self._condition = Condition(True)
        self._processes: Sequence[ProcessSample] = ()
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def request(self, num_prompt_tokens: int, num_samples: int) -> "RequestMetrics":
        """Follow one request, which arrives now."""
        self.request_num_samples.observe(num_samples)
        return RequestMetrics(self, num_prompt_tokens, num_samples)

    def counted(self) -> bytes:
        """All that was counted here so far: an encoded `Row` of `shared/totals.py`."""
        row = array("d")
        for name in COUNTED:
            row.extend(_numbers(getattr(self, name)))
        return encode_row(Row(row.tobytes(), self.ignored_fields.counts))

    def expose(
        self,
        stats: Stats,
        totals: bytes,
        condition: Condition,
        processes: Sequence[ProcessSample] = (),
        *,
        shows_fields: bool = True,
    ) -> bytes:
        """Prometheus' text. `totals` are the sums of all rows of `counted`, `condition` is that of this process.

        `stats` are the core's; what is not in them, as where it does not answer, is left out.
        Unless it `shows_fields`, so are the names of ignored fields: other clients' requests have chosen them.
        """
        shown = self.shown(stats, totals, condition, processes)
        if not shows_fields:
            shown.ignored_fields.counts = {}
        return generate_latest(shown._registry)

    def shown(
        self, stats: Stats, totals: bytes, condition: Condition, processes: Sequence[ProcessSample] = ()
    ) -> "Metrics":
        """A copy whose `collect` has these values, too."""
        shown = self.summed(totals)
        shown._stats, shown._condition, shown._processes = stats, condition, processes
        return shown

    def summed(self, totals: bytes) -> "Metrics":
        """What all API processes counted, from the sums of all rows of `counted`."""
        shown = Metrics(self._labels["model_name"], self._model, self.clock)
        total = decode_row(totals)
        shown.ignored_fields.counts = total.named
        numbers = iter(array("d", total.numbers))
        for name in COUNTED:
            setattr(shown, name, _filled(getattr(shown, name), numbers))
        return shown

    def collect(self) -> Iterator[Metric]:
        """Every family: the core's first, where it answered, then what was counted here."""
        if self._stats:
            yield from self._collect_core(self._stats)
        yield from self._collect_processes(self._processes)
        yield self._gauge(OURS, "ready", "1 while requests are worked on.", self._condition.ready)
        yield self._gauge(OURS, "stalled", "1 while work waits and no step is completed.", self._condition.stalled)
        connection = self.connection
        yield self._counter(OURS, "core_connections", "Cores that API processes met.", connection.num_core_connections)
        text = "Requests that were sent to a core again."
        yield self._counter(OURS, "resubmitted_requests", text, connection.num_resubmitted_requests)
        yield self._counter(VLLM, "prompt_tokens", "Prompt tokens of requests that got a token.", self.prompt_tokens)
        yield self._counter(
            VLLM, "prompt_tokens_cached", "Of these, found in the prefix cache.", self.cached_prompt_tokens
        )
        yield self._counter(VLLM, "generation_tokens", "Tokens generated.", self.generation_tokens)
        yield self._counters(VLLM, "request_success", "Samples that ended.", "finished_reason", self.finished)
        queue = {reason: self.rejected[reason] for reason in QUEUE_REASONS}
        yield self._counters(VLLM, "admission_rejections", "Requests that found the queue full.", "reason", queue)
        limits = {reason: self.rejected[reason] for reason in LIMIT_REASONS}
        yield self._counters(OURS, "rate_limit_rejections", "Requests beyond their account's limits.", "reason", limits)
        degradations = dict(self.degradations)
        if "num_degradations" in self._stats:
            degradations[CORE_DEGRADATION] = self._stats["num_degradations"]
        yield self._counters(OURS, "degradations", "Times that something was given up.", "reason", degradations)
        text = "Requests with a field that had no effect."
        yield self._counters(OURS, "ignored_fields", text, "field", self.ignored_fields.counts)
        looked_up, found = self.encoding.num_queried, self.encoding.num_found
        yield self._counter(OURS, "encoding_cache_queries", "Tokens of texts to encode.", looked_up)
        yield self._counter(OURS, "encoding_cache_hits", "Of these, known from earlier texts.", found)
        yield self._histogram("time_to_first_token_seconds", "From arrival to the first token.", self.first_token)
        yield self._histogram("inter_token_latency_seconds", "Between two deltas of a sample.", self.inter_token)
        yield self._histogram("e2e_request_latency_seconds", "From arrival to the last token.", self.request_seconds)
        yield self._histogram("request_queue_time_seconds", "From arrival to the first step.", self.queue_seconds)
        yield self._histogram(
            "request_prefill_time_seconds", "From the first step to the first token.", self.prefill_seconds
        )
        yield self._histogram(
            "request_decode_time_seconds", "From a sample's first token to its last.", self.decode_seconds
        )
        yield self._histogram(
            "request_inference_time_seconds", "From the first step to a sample's last token.", self.inference_seconds
        )
        yield self._histogram(
            "request_time_per_output_token_seconds", "A sample's mean, its first left out.", self.output_token_seconds
        )
        yield self._histogram("request_prompt_tokens", "Prompt tokens.", self.request_prompt_tokens)
        yield self._histogram("request_generation_tokens", "Tokens of a sample.", self.request_generation_tokens)
        yield self._histogram(
            "request_max_num_generation_tokens", "Tokens of a request's longest sample.", self.longest_sample_tokens
        )
        yield self._histogram("request_params_n", "Samples of a request.", self.request_num_samples)

    def describe(self) -> Iterator[Metric]:
        """Nothing, so that registering does not collect."""
        return iter(())

    def _collect_core(self, stats: Stats) -> Iterator[Metric]:
        for prefix, name, text, figure in GAUGES:
            if figure in stats:  # A core of another version may count less.
                yield self._gauge(prefix, name, text, stats[figure])
        for prefix, name, text, figure in COUNTERS:
            if figure in stats:
                yield self._counter(prefix, name, text, stats[figure])
        steps = [(float(name.removeprefix(STEPS_UP_TO)), stats[name]) for name in stats if name.startswith(STEPS_UP_TO)]
        if steps:
            buckets = [("+Inf" if math.isinf(bound) else str(bound), float(count)) for bound, count in sorted(steps)]
            num_tokens = stats["num_computed_tokens"]
            yield self._buckets("iteration_tokens_total", "Tokens of a step.", buckets, num_tokens)
        capacity, deferred = stats["num_waiting"], stats["num_held"] + stats["num_loading"]
        yield self._gauge(VLLM, "num_requests_waiting", "Requests that wait.", capacity + deferred)
        reasons = {"capacity": capacity, "deferred": deferred}
        yield self._gauges(VLLM, "num_requests_waiting_by_reason", "Requests that wait.", "reason", reasons)
        swaps = stats["num_swapped"]
        kinds = {"recompute": stats["num_preemptions"] - swaps, "swap": swaps}
        yield self._counters(OURS, "num_preemptions_by_kind", "Preemptions.", "kind", kinds)
        # What the device does not have is looked up on the host: vLLM's external cache.
        queries, on_host = stats["prefix_queries"], stats["host_prefix_hits"]
        on_device = stats["prefix_hits"] - on_host
        yield self._counter(VLLM, "prefix_cache_hits", "Prompt tokens found on the device.", on_device)
        yield self._counter(VLLM, "external_prefix_cache_queries", "Those looked up on the host.", queries - on_device)
        usage = share(stats["num_used_blocks"], stats["num_blocks"])
        yield self._gauge(VLLM, "kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", usage)
        num_host_blocks = stats["num_host_blocks"]
        host_usage = share(num_host_blocks - stats["num_free_host_blocks"], num_host_blocks)
        yield self._gauge(VLLM, "cpu_cache_usage_perc", "Share of the host's KV blocks in use, 0 to 1.", host_usage)
        cached = {"device": stats["num_cached_blocks"], "host": stats["num_cached_host_blocks"]}
        yield self._gauges(OURS, "num_cached_blocks", "Blocks that the prefix cache knows.", "tier", cached)
        configuration = {
            "block_size": str(self._model.block_size),
            "num_gpu_blocks": str(self._model.num_blocks),
            "num_cpu_blocks": str(num_host_blocks),
            "cache_dtype": self._model.kv_cache_dtype,
        }
        info = GaugeMetricFamily(
            f"{VLLM}:cache_config_info", "The KV cache's configuration.", labels=[*self._labels, *configuration]
        )
        info.add_metric([*self._labels.values(), *configuration.values()], 1)
        yield info

    def _collect_processes(self, processes: Sequence[ProcessSample]) -> Iterator[Metric]:
        """By their titles: several of one, as spares are, count together."""
        memory, cpu, devices, restarts = Counter[str](), dict[str, float](), Counter[str](), dict[str, int]()
        for process in processes:
            memory[process.name] += process.memory_bytes
            cpu[process.name] = cpu.get(process.name, 0.0) + process.cpu_seconds
            restarts[process.name] = restarts.get(process.name, 0) + process.num_restarts
            if process.device_bytes is not None:
                devices[process.name] += process.device_bytes
        if memory:
            yield self._gauges(OURS, "process_memory_bytes", "PSS of a process.", "process", memory)
            yield self._counters(OURS, "process_cpu_seconds", "CPU time of a process.", "process", cpu)
            yield self._counters(OURS, "process_restarts", "Times it was restarted.", "process", restarts)
        if devices:
            yield self._gauges(OURS, "process_device_bytes", "Its memory on all cards.", "process", devices)

    def _gauge(self, prefix: str, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"{prefix}:{name}", text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _gauges(self, prefix: str, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        family = GaugeMetricFamily(f"{prefix}:{name}", text, labels=[*self._labels, label])
        for kind, value in values.items():
            family.add_metric([*self._labels.values(), kind], value)
        return family

    def _counter(self, prefix: str, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"{prefix}:{name}", text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _counters(self, prefix: str, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        family = CounterMetricFamily(f"{prefix}:{name}", text, labels=[*self._labels, label])
        for kind, value in values.items():
            family.add_metric([*self._labels.values(), kind], value)
        return family

    def _histogram(self, name: str, text: str, histogram: Histogram) -> Metric:
        return self._buckets(name, text, histogram.buckets(), histogram.sum)

    def _buckets(self, name: str, text: str, buckets: list[tuple[str, float]], total: float) -> Metric:
        family = HistogramMetricFamily(f"{VLLM}:{name}", text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), buckets, total)
        return family


class SampleTimes(msgspec.Struct, frozen=True, gc=False):
    """Of a sample that has ended: when, by the clock, and seconds; `per_token` None with fewer than two tokens."""

    at: float
    end_to_end: float
    per_token: float | None


class RequestMetrics:
    """One request's times and counts, as they happen."""

    __slots__ = (
        *("_arrival", "_first", "_last", "_metrics", "_num_open", "_num_prompt_tokens", "_num_tokens", "_start_times"),
        *("_start_is_counted", "num_cached_tokens"),
    )

    def __init__(self, metrics: Metrics, num_prompt_tokens: int, num_samples: int) -> None:
        self._metrics = metrics
        self._num_prompt_tokens = num_prompt_tokens
        self._num_open = num_samples
        self._arrival = metrics.clock()
        self.num_cached_tokens = 0
        self._start_times: StartTimes | None = None
        self._start_is_counted = False
        self._first: list[float | None] = [None] * num_samples  # when its first token came, by sample
        self._last: list[float | None] = [None] * num_samples
        self._num_tokens = [0] * num_samples

    @property
    def num_tokens(self) -> int:
        """Tokens of all samples so far."""
        return sum(self._num_tokens)

    def num_tokens_of(self, sample: int) -> int:
        """Tokens of one sample so far."""
        return self._num_tokens[sample]

    def last_time_of(self, sample: int) -> float | None:
        """When one sample last got tokens, by the clock; None: it has none."""
        return self._last[sample]

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return self._num_prompt_tokens

    @property
    def start_times(self) -> StartTimes | None:
        """The times that a core has reported for the request's start; None: not yet."""
        return self._start_times

    @property
    def num_open(self) -> int:
        """Samples that have not ended."""
        return self._num_open

    def started(self, times: StartTimes) -> None:
        """A core has begun the request. What the first one says counts."""
        if self._start_times is None:
            self._start_times = times

    def delta(self, sample: int, num_tokens: int, num_cached_tokens: int) -> float:
        """A sample got tokens. Gives the seconds since its last ones, or since the request's arrival for the first."""
        metrics = self._metrics
        clock = metrics.clock  # Calling it as a method would cost twice as much.
        now = clock()
        last = self._last[sample]
        if last is not None:
            # `Histogram.observe`, without a call for each token.
            pause = now - last
            histogram = metrics.inter_token
            histogram.counts[bisect_left(histogram.bounds, pause)] += 1
            histogram.sum += pause
        else:
            self._first[sample] = now
            pause = now - self._arrival
            self._begin(pause, num_cached_tokens)
        self._last[sample] = now
        self._num_tokens[sample] += num_tokens
        metrics.generation_tokens += num_tokens
        return pause

    def finish(self, sample: int, reason: str) -> SampleTimes:
        """A sample has ended."""
        metrics = self._metrics
        self._num_open -= 1
        metrics.finished[reason] += 1
        now = metrics.clock()
        metrics.request_seconds.observe(now - self._arrival)
        metrics.request_generation_tokens.observe(self._num_tokens[sample])
        decode = self._count_times(sample)
        if not self._num_open:
            metrics.longest_sample_tokens.observe(max(self._num_tokens))
        number = self._num_tokens[sample]
        per_token = None if decode is None or number < 2 else decode / (number - 1)
        return SampleTimes(now, now - self._arrival, per_token)

    def end(self, reason: str) -> None:
        """Whatever has not ended by itself ends now."""
        self._metrics.finished[reason] += self._num_open
        self._num_open = 0

    def _count_times(self, sample: int) -> float | None:
        """Those of a sample that has ended with output, and with the first of these their request's.

        Gives the seconds from the sample's first token to its last.
        """
        metrics, times = self._metrics, self._start_times
        first, last = self._first[sample], self._last[sample]
        if first is None or last is None:
            return None
        decode = last - first
        metrics.decode_seconds.observe(decode)
        # A sample of one token has nothing to divide: it counts as 0, as in vLLM.
        metrics.output_token_seconds.observe(decode / max(self._num_tokens[sample] - 1, 1))
        if times is None:  # A core of another version does not tell.
            return decode
        start = min(first for first in self._first if first is not None) - times.prefill
        metrics.inference_seconds.observe(last - start)
        if not self._start_is_counted:
            self._start_is_counted = True
            metrics.queue_seconds.observe(times.queue)
            metrics.prefill_seconds.observe(times.prefill)
        return decode

    def _begin(self, seconds: float, num_cached_tokens: int) -> None:
        metrics = self._metrics
        if not any(self._num_tokens):
            self.num_cached_tokens = num_cached_tokens
            metrics.prompt_tokens += self._num_prompt_tokens
            metrics.cached_prompt_tokens += num_cached_tokens
            metrics.request_prompt_tokens.observe(self._num_prompt_tokens)
        metrics.first_token.observe(seconds)


Counted = int | float | dict[str, int] | Histogram | EncodingCounts | ConnectionCounts


def _numbers(value: Counted) -> list[float]:
    if isinstance(value, Histogram):
        return [*value.counts, value.sum]
    if isinstance(value, EncodingCounts | ConnectionCounts):
        return list(msgspec.structs.astuple(value))
    return list(value.values()) if isinstance(value, dict) else [value]


def _filled(value: Counted, numbers: Iterator[float]) -> Counted:
    """The same with the next of the numbers."""
    if isinstance(value, Histogram):
        value.counts = [int(next(numbers)) for _ in value.counts]
        value.sum = next(numbers)
        return value
    if isinstance(value, EncodingCounts | ConnectionCounts):
        return type(value)(int(next(numbers)), int(next(numbers)))
    return {key: int(next(numbers)) for key in value} if isinstance(value, dict) else int(next(numbers))


def num_waiting(stats: Stats) -> int:
    """Sequences that wait for whatever reason, by the core's figures."""
    return stats["num_waiting"] + stats["num_held"] + stats["num_loading"]


def share(part: int, whole: int) -> float:
    """A part of a whole, from 0 to 1; of nothing it is 0."""
    return part / whole if whole else 0.0
