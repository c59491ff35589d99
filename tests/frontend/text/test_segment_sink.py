"""Deltas are split at every boundary, and nothing is lost or doubled."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pyllm.client.columns import StartTimes
from pyllm.client.logprobs import LogprobEntries
from pyllm.client.token_reader import TokenDelta
from pyllm.errors import PyllmError
from pyllm.frontend.text.segment_sink import SegmentSink
from pyllm.wire.messages import FinishCode

START = StartTimes(0.5, 0.25)


class Sink:
    def __init__(self) -> None:
        self.deltas: list[tuple[int, TokenDelta]] = []

    def delta(self, index: int, delta: TokenDelta) -> None:
        self.deltas.append((index, delta))

    def prompt_logprobs(self, index: int, logprobs: list[LogprobEntries]) -> None:
        raise AssertionError

    def error(self, error: PyllmError) -> None:
        raise AssertionError


@given(
    st.lists(st.integers(1, 5), max_size=6),
    st.sets(st.integers(1, 25)).map(sorted),
    st.booleans(),
    st.booleans(),
)
def test_no_delta_spans_a_boundary(sizes: list[int], segments: list[int], has_logprobs: bool, ends_alone: bool) -> None:
    sink = Sink()
    splitting = SegmentSink(sink, [[], segments])
    start = 0
    for count, size in enumerate(sizes, 1):
        tokens = list(range(start, start + size))
        finish = FinishCode.STOP if count == len(sizes) and not ends_alone else FinishCode.NONE
        logprobs: Any = list(tokens) if has_logprobs else None
        splitting.delta(1, TokenDelta(1, tokens, finish, 3, logprobs, None, None if start else START))
        start += size
    if ends_alone:
        splitting.delta(1, TokenDelta(1, [], FinishCode.ABORT, 3))
    start_times = [delta.start_times for _, delta in sink.deltas]
    assert start_times == [START if sizes else None, *[None] * len(sink.deltas)][: len(sink.deltas)]
    assert [token for _, delta in sink.deltas for token in delta.tokens] == list(range(start))
    assert all(delta.tokens or delta.finish for _, delta in sink.deltas)
    ends = [bool(delta.finish) for _, delta in sink.deltas]
    assert ends == [False] * (len(ends) - 1) + [True] * bool(ends)
    seen = 0
    for index, delta in sink.deltas:
        tokens, finish = delta.tokens, delta.finish
        assert (index, delta.sample, delta.cached_tokens) == (1, 1, 3)
        assert delta.logprobs == (tokens if has_logprobs and not (ends_alone and finish) else None)
        end = seen + len(tokens)
        assert not any(seen < count < end or (finish and seen < count <= end) for count in segments)
        seen = end
