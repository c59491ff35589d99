"""A sink that counts and times the text that it passes on: what an engine inside an application measures."""

from pyllm.client.logprobs import LogprobEntries
from pyllm.client.streams import OutputSink
from pyllm.errors import PyllmError
from pyllm.frontend.observability.metrics import RequestMetrics
from pyllm.frontend.observability.summary import RequestTimes
from pyllm.frontend.text.detokenizer import TextDelta


class MeasuredSink:
    """For one request: in front of `sink`, whose every call comes through here."""

    __slots__ = ("_metrics", "_sink", "_times")

    def __init__(self, sink: OutputSink[TextDelta], times: RequestTimes, metrics: RequestMetrics) -> None:
        self._sink = sink
        self._times = times
        self._metrics = metrics

    def delta(self, index: int, delta: TextDelta) -> None:
        """Count new text, and pass it on."""
        if delta.start_times is not None:
            self._metrics.started(delta.start_times)
        self._times.delta(index, len(delta.tokens), delta.cached_tokens, delta.start_times)
        if delta.tokens:
            self._metrics.delta(index, len(delta.tokens), delta.cached_tokens)
        if delta.finish_reason is not None:
            self._metrics.finish(index, delta.finish_reason)
            self._times.finish(index)
        self._sink.delta(index, delta)

    def prompt_logprobs(self, index: int, logprobs: list[LogprobEntries]) -> None:
        """Pass them on."""
        self._sink.prompt_logprobs(index, logprobs)

    def error(self, error: PyllmError) -> None:
        """Count the samples that have not ended, and pass the failure on."""
        self._metrics.end("error")
        self._sink.error(error)
