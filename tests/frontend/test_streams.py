"""What is delivered tells apart the streams that miss tokens, once each, and those that have ended."""

from pyllm.errors import PyllmError
from pyllm.frontend.columns import decode_columns
from pyllm.frontend.journal import Journal
from pyllm.frontend.streams import Stream, Streams
from pyllm.frontend.submission import prepare
from pyllm.messages import FinishCode
from pyllm.sampling_params import SamplingParams
from tests.frontend.fake_core import MODEL, Row, deltas


class Sink:
    """Counts what it is given; `fails` makes it raise on tokens."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.num_deltas = 0
        self.num_errors = 0

    def delta(self, sample: int, tokens: list[int], finish: FinishCode, cached_tokens: int) -> None:
        self.num_deltas += 1
        if self.fails:
            raise ZeroDivisionError

    def error(self, error: PyllmError) -> None:
        self.num_errors += 1


def one(sink: Sink, num_samples: int) -> tuple[Streams, Stream]:
    streams = Streams()
    stream = Stream(1, Journal(prepare([1], SamplingParams(n=num_samples), MODEL), 0.0), sink)
    streams.add(stream)
    return streams, stream


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
    streams.end_closed_samples(stream)
    assert (sink.num_deltas, sink.num_errors, len(streams)) == (1, 1, 0)
