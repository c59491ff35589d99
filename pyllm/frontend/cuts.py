"""Deltas of tokens, split where somebody wants to tell what is before from what is after. Knows no text."""

from collections.abc import Sequence

from pyllm.errors import PyllmError
from pyllm.frontend.columns import StartTimes
from pyllm.frontend.logprobs import LogprobEntries
from pyllm.frontend.streams import Sink
from pyllm.messages import FinishCode


class CutSink:
    """Passes deltas on, and cuts those that span one of a sample's `cuts`: counts of its tokens, ascending, above 0.

    The end of a sample never comes together with tokens before a cut.
    """

    def __init__(self, sink: Sink, cuts: Sequence[Sequence[int]]) -> None:
        self._sink = sink
        self._cuts = [list(counts) for counts in cuts]
        self._num_seen = [0] * len(cuts)

    def started(self, times: StartTimes) -> None:
        """Pass on when the request began."""
        self._sink.started(times)

    def delta(
        self,
        sample: int,
        tokens: list[int],
        finish: FinishCode,
        cached_tokens: int,
        logprobs: list[LogprobEntries] | None,
    ) -> None:
        """Pass new tokens on, in as many deltas as it takes."""
        cuts = self._cuts[sample]
        while cuts and self._num_seen[sample] + len(tokens) >= cuts[0]:
            count = cuts.pop(0) - self._num_seen[sample]
            self._num_seen[sample] += count
            head = None if logprobs is None else logprobs[:count]
            self._sink.delta(sample, tokens[:count], FinishCode.NONE, cached_tokens, head)
            tokens, logprobs = tokens[count:], None if logprobs is None else logprobs[count:]
        self._num_seen[sample] += len(tokens)
        if tokens or finish:
            self._sink.delta(sample, tokens, finish, cached_tokens, logprobs)

    def prompt_logprobs(self, logprobs: list[LogprobEntries]) -> None:
        """Pass those of the prompt on."""
        self._sink.prompt_logprobs(logprobs)

    def error(self, error: PyllmError) -> None:
        """Pass a failure on."""
        self._sink.error(error)
