"""What is delivered tells apart the streams that miss tokens, once each, and those that have ended."""

from collections.abc import Sequence
from typing import Any

from pyllm.client.columns import StartTimes, decode_columns
from pyllm.client.journal import Journal
from pyllm.client.logprobs import Logprob, LogprobEntries
from pyllm.client.streams import Stream, Streams
from pyllm.client.submission import prepare
from pyllm.client.token_reader import TokenDelta
from pyllm.errors import PyllmError
from pyllm.parameters.sampling_params import SamplingParams
from pyllm.wire.messages import FinishCode
from tests.client.fake_core import MODEL, Row, deltas


class Sink:
    """Counts what it is given; `fails` makes it raise on tokens."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.num_deltas = 0
        self.num_errors = 0
        self.told: list[tuple[object, object]] = []

    def delta(self, index: int, delta: TokenDelta) -> None:
        if delta.start_times is not None:
            self.told.append(("started", delta.start_times))
            if self.fails:
                raise ZeroDivisionError
        self.num_deltas += 1
        self.told.append((delta.tokens, delta.logprobs))
        if self.fails:
            raise ZeroDivisionError

    def prompt_logprobs(self, index: int, logprobs: list[LogprobEntries]) -> None:
        self.told.append(("prompt", logprobs))
        if self.fails:
            raise ZeroDivisionError

    def error(self, error: PyllmError) -> None:
        self.num_errors += 1


def one(sink: Sink, num_samples: int = 1, prompt: Sequence[int] = (1,), **options: Any) -> tuple[Streams, Stream]:
    streams = Streams()
    submit = prepare(prompt, SamplingParams(n=num_samples, **options), MODEL)
    stream = Stream(1, Journal(submit, 0.0), sink)
    streams.add(stream)
    return streams, stream


def entry(token: int) -> LogprobEntries:
    """What `row` tells of a token."""
    return {token: Logprob(-float(token), token)}


def row(tokens: list[int], offset: int = 0, finish: FinishCode = FinishCode.NONE) -> Row:
    return Row(1, tokens, offset, finish=finish, logprobs=[[(token, -float(token), token)] for token in tokens])


def deliver(streams: Streams, *rows: Row) -> tuple[list[Stream], list[Stream]]:
    return streams.deliver(decode_columns(deltas(*rows)))


def test_a_stream_with_several_gaps_is_incomplete_once() -> None:
    streams, stream = one(Sink(), 3)
    assert deliver(streams, *(Row(1, [5], offset=2, sample=sample) for sample in range(3))) == ([stream], [])


def test_a_stream_that_failed_is_not_incomplete() -> None:
    sink = Sink(fails=True)
    streams, stream = one(sink, 2)
    assert deliver(streams, Row(1, [5], offset=2), Row(1, [5], sample=1)) == ([], [stream])
    assert (sink.num_errors, len(streams)) == (1, 0)


def test_after_its_error_a_sink_hears_nothing() -> None:
    sink = Sink(fails=True)
    streams, stream = one(sink, 3)
    for sample in (0, 1):
        stream.journal.close(sample)
    streams.end_complete_samples(stream)
    assert (sink.num_deltas, sink.num_errors, len(streams)) == (1, 1, 0)


def test_log_probabilities_come_with_their_tokens_and_once() -> None:
    sink = Sink()
    streams, _ = one(sink, logprobs=0)
    assert deliver(streams, row([5, 6])) == ([], [])
    assert deliver(streams, row([5, 6, 7], 0)) == ([], [])
    assert deliver(streams, row([], 3, FinishCode.LENGTH)) == ([], [])
    assert sink.told == [([5, 6], [entry(5), entry(6)]), ([7], [entry(7)]), ([], None)]


def test_who_asked_for_none_gets_none() -> None:
    plain, asking = Sink(), Sink()
    streams, _ = one(plain)
    streams.add(Stream(2, Journal(prepare([1], SamplingParams(logprobs=0), MODEL), 0.0), asking))
    assert deliver(streams, Row(1, [5]), Row(2, [6], logprobs=[[(6, -6.0, 6)]])) == ([], [])
    assert (plain.told, asking.told) == ([([5], None)], [([6], [entry(6)])])


def test_a_row_may_begin_in_the_prompt_and_go_on_in_the_output() -> None:
    sink = Sink()
    streams, _ = one(sink, prompt=[1, 2, 3, 4], prompt_logprobs=0, logprobs=0)
    assert deliver(streams, row([2], -3)) == ([], [])
    assert deliver(streams, row([2, 3, 4, 8], -3, FinishCode.LENGTH)) == ([], [])
    assert sink.told == [("prompt", [entry(2)]), ("prompt", [entry(3), entry(4)]), ([8], [entry(8)])]


def test_a_start_is_told_before_the_first_tokens() -> None:
    sink = Sink()
    streams, _ = one(sink)
    assert deliver(streams, Row(9, [5], start=StartTimes(8.0, 8.0)), Row(1, [6], start=StartTimes(0.5, 0.25))) == (
        [],
        [],
    )
    assert deliver(streams, Row(1, [7], 1)) == ([], [])
    assert sink.told == [("started", StartTimes(0.5, 0.25)), ([6], None), ([7], None)]


def test_a_sink_that_fails_on_a_start_ends_its_stream_only() -> None:
    bad, good = Sink(fails=True), Sink()
    streams, stream = one(bad)
    other = Stream(2, Journal(prepare([1], SamplingParams(), MODEL), 0.0), good)
    streams.add(other)
    start = StartTimes(0.5, 0.25)
    assert deliver(streams, Row(1, [5], start=start), Row(2, [6], start=start)) == ([], [stream])
    assert (bad.num_deltas, bad.num_errors) == (0, 1)
    assert good.told == [("started", start), ([6], None)]


def test_a_prompt_that_is_told_again_is_not_heard_again() -> None:
    sink = Sink()
    streams, stream = one(sink, prompt=[1, 2, 3], prompt_logprobs=0)
    assert deliver(streams, row([2, 3], -2), Row(1, [8])) == ([], [])
    assert deliver(streams, row([2, 3], -2), Row(1, [9], 1)) == ([], [])
    assert sink.told == [("prompt", [entry(2), entry(3)]), ([8], None), ([9], None)]
    assert stream.journal.submission(1, 1, 0.0).sampling.prompt_logprobs is None


def test_a_prompt_with_a_gap_is_asked_for_again() -> None:
    sink = Sink()
    streams, stream = one(sink, prompt=[1, 2, 3], prompt_logprobs=0)
    assert deliver(streams, row([3], -1)) == ([stream], [])
    assert deliver(streams, Row(1, [8])) == ([stream], [])
    assert sink.told == []
    assert deliver(streams, row([2, 3], -2), Row(1, [8])) == ([], [])
    assert len(sink.told) == 2


def test_a_sink_that_fails_on_a_prompt_ends_its_stream() -> None:
    sink = Sink(fails=True)
    streams, stream = one(sink, prompt=[1, 2], prompt_logprobs=0)
    assert deliver(streams, row([2], -1)) == ([], [stream])
    assert (sink.num_errors, len(streams)) == (1, 0)
