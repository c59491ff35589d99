"""Splits deltas of tokens at given counts. Knows no text."""

from collections.abc import Sequence

from msgspec.structs import replace

from pyllm.client.logprobs import LogprobEntries
from pyllm.client.streams import OutputSink
from pyllm.client.token_reader import TokenDelta
from pyllm.errors import PyllmError
from pyllm.wire.messages import FinishCode


class SegmentSink:
    """Passes deltas on, and splits those that span one of a sample's `boundaries`.

    Boundaries are counts of its tokens, ascending, above 0. The end of a sample never comes with tokens before a
    boundary.
    """

    def __init__(self, sink: OutputSink[TokenDelta], boundaries: Sequence[Sequence[int]]) -> None:
        self._sink = sink
        self._boundaries = [list(counts) for counts in boundaries]
        self._num_seen = [0] * len(boundaries)

    def delta(self, index: int, delta: TokenDelta) -> None:
        """Pass new tokens on, in as many deltas as it takes."""
        boundaries = self._boundaries[index]
        while boundaries and self._num_seen[index] + len(delta.tokens) >= boundaries[0]:
            count = boundaries.pop(0) - self._num_seen[index]
            self._num_seen[index] += count
            head, delta = _split(delta, count)
            self._sink.delta(index, head)
        self._num_seen[index] += len(delta.tokens)
        if delta.tokens or delta.finish:
            self._sink.delta(index, delta)

    def prompt_logprobs(self, index: int, logprobs: list[LogprobEntries]) -> None:
        """Pass log-probabilities of the prompt on."""
        self._sink.prompt_logprobs(index, logprobs)

    def error(self, error: PyllmError) -> None:
        """Pass a failure on."""
        self._sink.error(error)


def _split(delta: TokenDelta, count: int) -> tuple[TokenDelta, TokenDelta]:
    """The first `count` tokens, and the rest with the end of the sample."""
    first, rest = (None, None) if delta.logprobs is None else (delta.logprobs[:count], delta.logprobs[count:])
    head = replace(delta, tokens=delta.tokens[:count], finish=FinishCode.NONE, logprobs=first)
    return head, replace(delta, tokens=delta.tokens[count:], logprobs=rest, start_times=None)
