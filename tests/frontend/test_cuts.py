"""Deltas are split at every cut, and nothing is lost or doubled."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pyllm.errors import PyllmError
from pyllm.frontend.columns import StartTimes
from pyllm.frontend.cuts import CutSink
from pyllm.frontend.logprobs import LogprobEntries
from pyllm.messages import FinishCode


class Sink:
    def __init__(self) -> None:
        self.starts: list[StartTimes] = []
        self.deltas: list[tuple[int, list[int], FinishCode, int, Any]] = []

    def started(self, times: StartTimes) -> None:
        self.starts.append(times)

    def delta(self, *delta: Any) -> None:
        self.deltas.append(delta)

    def prompt_logprobs(self, logprobs: list[LogprobEntries]) -> None:
        raise AssertionError

    def error(self, error: PyllmError) -> None:
        raise AssertionError


@given(
    st.lists(st.integers(1, 5), max_size=6),
    st.sets(st.integers(1, 25)).map(sorted),
    st.booleans(),
    st.booleans(),
)
def test_no_delta_spans_a_cut(sizes: list[int], cuts: list[int], has_logprobs: bool, ends_alone: bool) -> None:
    sink = Sink()
    cutting = CutSink(sink, [[], cuts])
    cutting.started(StartTimes(0.5, 0.25))
    start = 0
    for count, size in enumerate(sizes, 1):
        tokens = list(range(start, start + size))
        finish = FinishCode.STOP if count == len(sizes) and not ends_alone else FinishCode.NONE
        cutting.delta(1, tokens, finish, 3, list(tokens) if has_logprobs else None)  # type: ignore[arg-type]  # any list
        start += size
    if ends_alone:
        cutting.delta(1, [], FinishCode.ABORT, 3, None)
    assert sink.starts == [StartTimes(0.5, 0.25)]
    assert [token for _, tokens, *_ in sink.deltas for token in tokens] == list(range(start))
    assert all(tokens or finish for _, tokens, finish, *_ in sink.deltas)
    assert [bool(finish) for *_, finish, _, _ in sink.deltas] == [False] * (len(sink.deltas) - 1) + [True] * bool(
        sink.deltas
    )
    seen = 0
    for sample, tokens, finish, cached, logprobs in sink.deltas:
        assert (sample, cached) == (1, 3)
        assert logprobs == (tokens if has_logprobs and not (ends_alone and finish) else None)
        end = seen + len(tokens)
        assert not any(seen < cut < end or (finish and seen < cut <= end) for cut in cuts)
        seen = end
