"""The list of metrics: counts this API process's requests, and shows what cores and other processes have counted.

Metrics of cores are in `core_metrics.py`. Names with `vllm:` have vLLM's meaning and bounds; metrics that vLLM lacks
begin with `pyllm:`. All are plain numbers, and become Prometheus families when scraped: a token costs two additions.
"""

import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from pyllm.client.columns import StartTimes
from pyllm.client.core_connection import Condition, ConnectionCounts
from pyllm.frontend.http.ignored_fields import IgnoredFields
from pyllm.frontend.observability.core_metrics import (
    DEGRADATIONS_TEXT,
    CoreFigures,
    families_of_core,
    family_of_adapters,
)
from pyllm.frontend.observability.histogram import (
    FIRST_TOKEN_BOUNDS,
    INTER_TOKEN_BOUNDS,
    NUM_SAMPLES_BOUNDS,
    REQUEST_BOUNDS,
    Histogram,
    token_bounds,
)
from pyllm.frontend.observability.http_counts import HttpCounts
from pyllm.frontend.observability.metric_families import OURS, VLLM, Families, merged
from pyllm.frontend.observability.process_metrics import families_of_processes
from pyllm.frontend.shared.messages import LIMIT_REASONS, QUEUE_REASONS, REASONS
from pyllm.frontend.shared.totals import Row, decode_row, encode_row
from pyllm.frontend.text.encoding_threads import EncodingCounts
from pyllm.parameters.sampling_params import SamplingParams
from pyllm.supervision.process_samples import ProcessSample
from pyllm.wire.messages import FinishCode, ModelInfo

CONTENT_TYPE = "text/plain; version=0.0.4"  # the charset is appended by the framework

FINISH_REASONS = tuple(code.name.lower() for code in FinishCode if code)

# Attributes that each API process counts for itself, and that are shown as sums over all API processes.
COUNTED = (
    *("prompt_tokens", "cached_prompt_tokens", "generation_tokens", "finished"),
    *("rejected", "degradations", "encoding", "first_token", "inter_token", "request_seconds"),
    *("queue_seconds", "prefill_seconds", "decode_seconds", "inference_seconds", "output_token_seconds"),
    *("request_prompt_tokens", "request_computed_tokens", "request_generation_tokens", "longest_sample_tokens"),
    *("request_num_samples", "request_max_tokens"),
    "connection",
)

# Degradations by which an API process avoids running out of memory.
DEGRADATIONS = ("host_memory",)

# The figures of each core, by its index.
Cores = Mapping[int, CoreFigures]


class Metrics(Collector):
    """All metrics of one API process."""

    def __init__(
        self,
        model_name: str,
        model: ModelInfo,
        clock: Callable[[], float] = time.perf_counter,
        connection: ConnectionCounts | None = None,
        *,
        max_loras: int = 0,
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
        self.http = HttpCounts()
        self.first_token = Histogram(FIRST_TOKEN_BOUNDS)
        self.inter_token = Histogram(INTER_TOKEN_BOUNDS)
        self.request_seconds = Histogram(REQUEST_BOUNDS)
        self.queue_seconds = Histogram(REQUEST_BOUNDS)
        self.prefill_seconds = Histogram(REQUEST_BOUNDS)
        self.decode_seconds = Histogram(REQUEST_BOUNDS)
        self.inference_seconds = Histogram(REQUEST_BOUNDS)
        self.output_token_seconds = Histogram(INTER_TOKEN_BOUNDS)
        self.request_prompt_tokens = Histogram(token_bounds(model.max_model_len))
        self.request_computed_tokens = Histogram(token_bounds(model.max_model_len))
        self.request_generation_tokens = Histogram(token_bounds(model.max_model_len))
        self.longest_sample_tokens = Histogram(token_bounds(model.max_model_len))
        self.request_num_samples = Histogram(NUM_SAMPLES_BOUNDS)
        self.request_max_tokens = Histogram(token_bounds(model.max_model_len))
        self._model = model
        self._max_loras = max_loras
        self._labels = {"model_name": model_name, "engine": "0"}
        self._cores: Cores = {}
        self._condition = Condition(True)
        self._processes: Sequence[ProcessSample] = ()
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def request(self, num_prompt_tokens: int, params: SamplingParams | None) -> "RequestMetrics":
        """Follow one request, which arrives now; `params` are None where nothing is sampled."""
        num_samples = 1
        if params is not None:
            num_samples, limit = params.n, params.max_tokens
            room = max(self._model.max_model_len - num_prompt_tokens, 0)
            self.request_max_tokens.observe(room if limit is None else min(limit, room))
        self.request_num_samples.observe(num_samples)
        return RequestMetrics(self, num_prompt_tokens, num_samples)

    def counted(self) -> bytes:
        """All counts of this process so far: an encoded `Row` of `shared/totals.py`."""
        row = array("d")
        for name in COUNTED:
            row.extend(_numbers(getattr(self, name)))
        return encode_row(Row(row.tobytes(), self.ignored_fields.counts, self.http.groups))

    def expose(
        self,
        cores: Cores,
        totals: bytes,
        condition: Condition,
        processes: Sequence[ProcessSample] = (),
        *,
        shows_fields: bool = True,
    ) -> bytes:
        """Prometheus' text. `totals` are the sums of all rows of `counted`, `condition` is that of this process.

        Metrics whose figures a core lacks, as when it does not answer, are left out.
        So are the names of ignored fields without `shows_fields`: other clients' requests have chosen them.
        """
        shown = self.shown(cores, totals, condition, processes)
        if not shows_fields:
            shown.ignored_fields.counts = {}
        return generate_latest(shown._registry)

    def shown(
        self, cores: Cores, totals: bytes, condition: Condition, processes: Sequence[ProcessSample] = ()
    ) -> "Metrics":
        """A copy whose `collect` has these values, too."""
        shown = self.summed(totals)
        shown._cores, shown._condition, shown._processes = cores, condition, processes
        return shown

    def summed(self, totals: bytes) -> "Metrics":
        """The counts of all API processes, from the sums of all rows of `counted`."""
        shown = Metrics(self._labels["model_name"], self._model, self.clock, max_loras=self._max_loras)
        total = decode_row(totals)
        shown.ignored_fields.counts = total.named
        shown.http.groups = total.grouped
        numbers = iter(array("d", total.numbers))
        for name in COUNTED:
            setattr(shown, name, _filled(getattr(shown, name), numbers))
        return shown

    def collect(self) -> Iterator[Metric]:
        """Every family: those of cores first, then the counts of API processes, over all cores."""
        families = Families(self._labels)
        of_api = families.counters(OURS, "degradations", DEGRADATIONS_TEXT, "reason", self.degradations)
        yield from merged([*self._collect_cores(), of_api])
        yield from families_of_processes(families, self._processes)
        yield families.gauge(OURS, "ready", "1 while requests are worked on.", self._condition.ready)
        yield families.gauge(OURS, "stalled", "1 while work waits and no step is completed.", self._condition.stalled)
        connection = self.connection
        text = "Cores that API processes met."
        yield families.counter(OURS, "core_connections", text, connection.num_core_connections)
        text = "Requests that were sent to a core again."
        yield families.counter(OURS, "resubmitted_requests", text, connection.num_resubmitted_requests)
        yield families.counter(VLLM, "prompt_tokens", "Prompt tokens of requests that got a token.", self.prompt_tokens)
        yield families.counter(
            VLLM, "prompt_tokens_cached", "Of these, found in the prefix cache.", self.cached_prompt_tokens
        )
        yield families.counter(VLLM, "generation_tokens", "Tokens generated.", self.generation_tokens)
        yield families.counters(VLLM, "request_success", "Samples that ended.", "finished_reason", self.finished)
        queue = {reason: self.rejected[reason] for reason in QUEUE_REASONS}
        yield families.counters(VLLM, "admission_rejections", "Requests that found the queue full.", "reason", queue)
        limits = {reason: self.rejected[reason] for reason in LIMIT_REASONS}
        text = "Requests beyond their account's limits."
        yield families.counters(OURS, "rate_limit_rejections", text, "reason", limits)
        text = "Requests with a field that had no effect."
        yield families.counters(OURS, "ignored_fields", text, "field", self.ignored_fields.counts)
        looked_up, found = self.encoding.num_queried, self.encoding.num_found
        yield families.counter(OURS, "encoding_cache_queries", "Tokens of texts to encode.", looked_up)
        yield families.counter(OURS, "encoding_cache_hits", "Of these, known from earlier texts.", found)
        yield families.histogram("time_to_first_token_seconds", "From arrival to the first token.", self.first_token)
        yield families.histogram("inter_token_latency_seconds", "Between two deltas of a sample.", self.inter_token)
        text = "The older name of inter_token_latency_seconds."
        yield families.histogram("time_per_output_token_seconds", text, self.inter_token)
        yield families.histogram("e2e_request_latency_seconds", "From arrival to the last token.", self.request_seconds)
        yield families.histogram("request_queue_time_seconds", "From arrival to the first step.", self.queue_seconds)
        yield families.histogram(
            "request_prefill_time_seconds", "From the first step to the first token.", self.prefill_seconds
        )
        yield families.histogram(
            "request_decode_time_seconds", "From a sample's first token to its last.", self.decode_seconds
        )
        yield families.histogram(
            "request_inference_time_seconds", "From the first step to a sample's last token.", self.inference_seconds
        )
        yield families.histogram(
            "request_time_per_output_token_seconds", "A sample's mean, its first left out.", self.output_token_seconds
        )
        yield families.histogram("request_prompt_tokens", "Prompt tokens.", self.request_prompt_tokens)
        yield families.histogram(
            "request_prefill_kv_computed_tokens", "Prompt tokens that no cache had.", self.request_computed_tokens
        )
        yield families.histogram("request_generation_tokens", "Tokens of a sample.", self.request_generation_tokens)
        yield families.histogram(
            "request_max_num_generation_tokens", "Tokens of a request's longest sample.", self.longest_sample_tokens
        )
        yield families.histogram("request_params_n", "Samples of a request.", self.request_num_samples)
        text = "Tokens that a request allows a sample, or that the context leaves it."
        yield families.histogram("request_params_max_tokens", text, self.request_max_tokens)
        yield from self.http.collect()

    def describe(self) -> Iterator[Metric]:
        """Nothing, so that registering does not collect."""
        return iter(())

    def _collect_cores(self) -> Iterator[Metric]:
        for index, figures in self._cores.items():
            families = Families(self._labels | {"engine": str(index)})
            yield from families_of_core(families, figures, self._model)
            if self._max_loras:
                yield family_of_adapters(families, figures.adapters, self._max_loras)


class SampleTimes(msgspec.Struct, frozen=True, gc=False):
    """The end of a sample, by the clock, and its latencies in seconds; `per_token` is None below two tokens."""

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
        self._first: list[float | None] = [None] * num_samples  # the time of the first token, by sample
        self._last: list[float | None] = [None] * num_samples
        self._num_tokens = [0] * num_samples

    @property
    def num_tokens(self) -> int:
        """Tokens of all samples so far."""
        return sum(self._num_tokens)

    @property
    def has_begun(self) -> bool:
        """Whether any sample has had a delta."""
        return any(first is not None for first in self._first)

    def num_tokens_of(self, sample: int) -> int:
        """Tokens of one sample so far."""
        return self._num_tokens[sample]

    def seconds_of(self, sample: int) -> tuple[float, float]:
        """Seconds of one sample to its first tokens, and from these to its last ones so far; 0 without tokens."""
        first, last = self._first[sample], self._last[sample]
        return (0.0, 0.0) if first is None or last is None else (first - self._arrival, last - first)

    def last_time_of(self, sample: int) -> float | None:
        """The time of one sample's last tokens, by the clock; None without tokens."""
        return self._last[sample]

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return self._num_prompt_tokens

    @property
    def start_times(self) -> StartTimes | None:
        """The times that a core has reported for the request's start; None before that."""
        return self._start_times

    @property
    def num_open(self) -> int:
        """Samples that have not ended."""
        return self._num_open

    def started(self, times: StartTimes) -> None:
        """Note that a core has begun the request. The first report counts."""
        if self._start_times is None:
            self._start_times = times

    def delta(self, sample: int, num_tokens: int, num_cached_tokens: int) -> float:
        """Count tokens of a sample. Gives the seconds since its last ones, or, for the first, since the arrival."""
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
        """Count the end of a sample."""
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
        """End all samples that have not ended by themselves."""
        self._metrics.finished[reason] += self._num_open
        self._num_open = 0

    def _count_times(self, sample: int) -> float | None:
        """Count the times of an ended sample with output; with the request's first such sample, also the request's.

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
        if times is None:  # A core of another version reports no times.
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
            metrics.request_computed_tokens.observe(self._num_prompt_tokens - num_cached_tokens)
        metrics.first_token.observe(seconds)


Counted = int | float | dict[str, int] | Histogram | EncodingCounts | ConnectionCounts


def _numbers(value: Counted) -> list[float]:
    if isinstance(value, Histogram):
        return [*value.counts, value.sum]
    if isinstance(value, EncodingCounts | ConnectionCounts):
        return list(msgspec.structs.astuple(value))
    return list(value.values()) if isinstance(value, dict) else [value]


def _filled(value: Counted, numbers: Iterator[float]) -> Counted:
    """A value like this one, filled with the next numbers."""
    if isinstance(value, Histogram):
        value.counts = [int(next(numbers)) for _ in value.counts]
        value.sum = next(numbers)
        return value
    if isinstance(value, EncodingCounts | ConnectionCounts):
        return type(value)(int(next(numbers)), int(next(numbers)))
    return {key: int(next(numbers)) for key in value} if isinstance(value, dict) else int(next(numbers))
