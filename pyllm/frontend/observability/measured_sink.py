"""A sink that counts and times the text that it passes on, for an engine inside an application.

`RequestMetrics` measures each delta once; `RecentRequests` keeps the same numbers for summaries.
"""

from pyllm.client.logprobs import LogprobEntries
from pyllm.client.streams import OutputSink
from pyllm.errors import PyllmError
from pyllm.frontend.observability.metrics import RequestMetrics
from pyllm.frontend.observability.summary import RecentRequests
from pyllm.frontend.text.detokenizer import TextDelta


class MeasuredSink:
    """The sink of one request: counts every call, and passes it on to `sink`."""

    __slots__ = ("_metrics", "_recent", "_sink")

    def __init__(self, sink: OutputSink[TextDelta], metrics: RequestMetrics, recent: RecentRequests) -> None:
        self._sink = sink
        self._metrics = metrics
        self._recent = recent

    def delta(self, index: int, delta: TextDelta) -> None:
        """Count new text, and pass it on."""
        metrics = self._metrics
        if delta.start_times is not None:
            metrics.started(delta.start_times)
        if delta.tokens:
            self._count(index, len(delta.tokens), delta.cached_tokens)
        if delta.finish_reason is not None:
            sample = metrics.finish(index, delta.finish_reason)
            self._recent.add_ended(sample, is_last=not metrics.num_open)
        self._sink.delta(index, delta)

    def prompt_logprobs(self, index: int, logprobs: list[LogprobEntries]) -> None:
        """Pass log-probabilities on."""
        self._sink.prompt_logprobs(index, logprobs)

    def error(self, error: PyllmError) -> None:
        """Count the samples that have not ended, and pass the failure on."""
        self._metrics.end("error")
        self._sink.error(error)

    def _count(self, index: int, num_tokens: int, num_cached_tokens: int) -> None:
        metrics, recent = self._metrics, self._recent
        begins, is_first = not metrics.num_tokens, not metrics.num_tokens_of(index)
        seconds = metrics.delta(index, num_tokens, num_cached_tokens)
        at = metrics.last_time_of(index)
        assert at is not None, "it has just got tokens"
        if begins:
            start = metrics.start_times
            queue = None if start is None else start.queue
            recent.add_request(at, metrics.num_prompt_tokens, metrics.num_cached_tokens, queue)
        recent.add_tokens(at, num_tokens, seconds, is_first)
