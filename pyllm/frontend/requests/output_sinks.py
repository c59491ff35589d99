"""Sinks around a request's answer: one logs its text, one cuts it and ends it early. They know no answer format."""

from collections.abc import Callable, Sequence

from pyllm.client.logprobs import LogprobEntries
from pyllm.client.streams import OutputSink
from pyllm.errors import PyllmError
from pyllm.frontend.observability.request_log import RequestLog
from pyllm.frontend.text.detokenizer import TextDelta

TakeText = Callable[[str], tuple[str, bool]]


class LoggedSink:
    """Keeps the text of each choice for the log, and passes everything on."""

    def __init__(self, sink: OutputSink[TextDelta], log: RequestLog, request_id: str) -> None:
        self._sink = sink
        self._log = log
        self._request_id = request_id
        self._texts: dict[int, list[str]] = {}
        self._num_tokens: dict[int, int] = {}

    def delta(self, index: int, delta: TextDelta) -> None:
        """New output of one choice."""
        texts = self._texts.setdefault(index, [])
        texts.append(delta.text)
        self._num_tokens[index] = self._num_tokens.get(index, 0) + delta.num_tokens
        if delta.finish_reason is not None:
            self._log.ended(self._request_id, index, "".join(texts), self._num_tokens[index], delta.finish_reason)
        self._sink.delta(index, delta)

    def prompt_logprobs(self, index: int, logprobs: list[LogprobEntries]) -> None:
        """Log-probabilities of the prompt's next tokens."""
        self._sink.prompt_logprobs(index, logprobs)

    def error(self, error: PyllmError) -> None:
        """The request has failed."""
        self._sink.error(error)


class EndingSink:
    """Cuts texts, and calls `end` once each choice has ended or has all of its text.

    `takes` has a function for each choice: it gives the part of the new text that stays, and whether the text ends.
    """

    def __init__(self, sink: OutputSink[TextDelta], takes: Sequence[TakeText], end: Callable[[], None]) -> None:
        self._sink = sink
        self._takes = takes
        self._going_on = set(range(len(takes)))
        self._end = end

    def delta(self, index: int, delta: TextDelta) -> None:
        """New output of one choice."""
        delta.text, is_all = self._takes[index](delta.text)
        self._sink.delta(index, delta)
        if index in self._going_on and (is_all or delta.finish_reason is not None):
            self._going_on.remove(index)
            if not self._going_on:
                self._end()

    def prompt_logprobs(self, index: int, logprobs: list[LogprobEntries]) -> None:
        """Log-probabilities of the prompt's next tokens."""
        self._sink.prompt_logprobs(index, logprobs)

    def error(self, error: PyllmError) -> None:
        """The request has failed."""
        self._sink.error(error)
