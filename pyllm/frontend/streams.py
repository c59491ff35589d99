"""The requests in flight at one client: which tokens go to whom, and who is still owed some. Sends nothing itself."""

import logging
from collections.abc import Callable
from typing import Protocol

from pyllm.errors import PyllmError
from pyllm.frontend.columns import Columns, StartTimes
from pyllm.frontend.journal import Journal
from pyllm.frontend.logprobs import LogprobColumns, LogprobEntries
from pyllm.messages import FinishCode

_SINK_FAILED = "the output of this request could not be processed"

logger = logging.getLogger(__name__)


class Sink(Protocol):
    """Where the tokens of one request go: plain functions, called from the event loop, that must not block."""

    def started(self, times: StartTimes) -> None:
        """When the request began; comes before its first output, again where another core begins it anew."""

    def delta(
        self,
        sample: int,
        tokens: list[int],
        finish: FinishCode,
        cached_tokens: int,
        logprobs: list[LogprobEntries] | None,
    ) -> None:
        """New tokens of one sample; a `finish` other than NONE is its last delta. The lists are the sink's to keep.

        `logprobs` has an entry for each token, or is None where they are not wanted.
        """

    def prompt_logprobs(self, logprobs: list[LogprobEntries]) -> None:
        """Those of the prompt's next tokens, beginning at its second; they come before any output of sample 0."""

    def error(self, error: PyllmError) -> None:
        """The request has failed; nothing follows."""


class Stream:
    """One request: its journal, its sink, and the samples that have not had their last delta.

    `cached_tokens` came with the first tokens, None before; those that another core has cached are no news of this
    request. Where it asks for an embedding, `on_embedding` is given it, float32, before the last delta. A core has had
    what `is_sent`.
    """

    __slots__ = ("cached_tokens", "is_sent", "journal", "on_embedding", "open_samples", "request", "sink", "wire_id")

    def __init__(
        self, request: int, journal: Journal, sink: Sink, on_embedding: Callable[[bytes], None] | None = None
    ) -> None:
        self.request = request
        self.wire_id = request  # Another one after a resubmission: ids are never used twice.
        self.journal = journal
        self.sink = sink
        self.on_embedding = on_embedding
        self.open_samples = set(range(journal.num_samples))
        self.cached_tokens: int | None = None
        self.is_sent = False

    def note_cached(self, cached_tokens: int, is_output: bool) -> int:
        """Enter what a row says, if it is the first with output; gives what is to be told with it."""
        if self.cached_tokens is None:
            if is_output:
                self.cached_tokens = cached_tokens
            return cached_tokens
        return self.cached_tokens


class Streams:
    """Streams by the caller's id, and by the id that the core knows."""

    def __init__(self) -> None:
        self._by_request: dict[int, Stream] = {}
        self._by_wire_id: dict[int, Stream] = {}

    def __len__(self) -> int:
        return len(self._by_request)

    def all(self) -> list[Stream]:
        """Every stream that has not ended, oldest first."""
        return list(self._by_request.values())

    def add(self, stream: Stream) -> None:
        """Deliver to this stream from now on."""
        self._by_request[stream.request] = self._by_wire_id[stream.wire_id] = stream

    def get(self, request: int) -> Stream | None:
        """The stream of the caller's id, unless it has ended."""
        return self._by_request.get(request)

    def get_by_wire_id(self, wire_id: int) -> Stream | None:
        """The stream of the core's id, unless it has ended or goes by another id now."""
        return self._by_wire_id.get(wire_id)

    def rename(self, stream: Stream, wire_id: int) -> None:
        """Let the stream go on under a fresh id; what still comes for the old one is dropped."""
        del self._by_wire_id[stream.wire_id]
        stream.wire_id = wire_id
        self._by_wire_id[wire_id] = stream

    def deliver(self, columns: Columns) -> tuple[list[Stream], list[Stream]]:
        """Hand every row to its sink.

        Gives the streams that miss tokens and must be sent again, and those whose sink failed, which have ended; each
        stream once.
        """
        requests, samples, offsets, starts, tokens, finishes, cached_tokens, logprobs, embeddings, start_times = columns
        streams = self._by_wire_id
        for row, values in (embeddings or {}).items():
            stream = streams.get(requests[row])
            if stream is not None and stream.on_embedding is not None:
                stream.on_embedding(values)
        incomplete: dict[int, Stream] = {}
        failed = self._tell_starts(requests, start_times) if start_times else []
        for wire_id, sample, offset, start, end, finish, cached in zip(
            requests, samples, offsets, starts, starts[1:], finishes, cached_tokens, strict=False
        ):
            stream = streams.get(wire_id)
            if stream is None or sample not in stream.open_samples:
                continue
            try:
                if offset >= 0:
                    fresh = stream.journal.accept(sample, offset, tokens[start:end])
                else:
                    output = _tell_prompt(stream, offset, start, end, logprobs)
                    fresh = None if output is None else stream.journal.accept(sample, 0, tokens[output:end])
                if fresh is None:
                    incomplete[stream.request] = stream
                    continue
                if finish:
                    self._close(stream, sample)
                elif not fresh:
                    continue
                entries = None if logprobs is None else logprobs.of(end - len(fresh), end)
                stream.sink.delta(sample, fresh, finish, stream.note_cached(cached, bool(fresh)), entries)
            except Exception:  # One caller's fault must not end the streams of the others.
                logger.exception("the sink of request %d failed", stream.request)
                self.fail(stream, PyllmError(_SINK_FAILED))
                failed.append(stream)
        return [stream for request, stream in incomplete.items() if request in self._by_request], failed

    def end_complete_samples(self, stream: Stream) -> None:
        """Give a last delta to the samples that have all that is wanted of them, because no core will."""
        for sample in list(stream.open_samples):
            if finish := stream.journal.ending(sample):
                self._end_sample(stream, sample, finish)

    def expire(self, stream: Stream) -> None:
        """Give a last delta to every sample, because time is over."""
        for sample in list(stream.open_samples):
            self._end_sample(stream, sample, FinishCode.DEADLINE)

    def fail(self, stream: Stream, error: PyllmError) -> None:
        """End a stream with an error."""
        self.forget(stream)
        try:
            stream.sink.error(error)
        except Exception:
            logger.exception("the sink of request %d failed on %r", stream.request, error)

    def forget(self, stream: Stream) -> None:
        """Deliver nothing to this stream any more."""
        self._by_request.pop(stream.request, None)
        self._by_wire_id.pop(stream.wire_id, None)

    def _tell_starts(self, requests: list[int], start_times: dict[int, StartTimes]) -> list[Stream]:
        """Hand over when requests began; gives the streams whose sink failed."""
        failed = []
        for row, times in start_times.items():
            stream = self._by_wire_id.get(requests[row])
            if stream is not None:
                try:
                    stream.sink.started(times)
                except Exception:
                    logger.exception("the sink of request %d failed", stream.request)
                    self.fail(stream, PyllmError(_SINK_FAILED))
                    failed.append(stream)
        return failed

    def _end_sample(self, stream: Stream, sample: int, finish: FinishCode) -> None:
        if sample not in stream.open_samples or self.get(stream.request) is None:
            return  # The sink has ended it on hearing of one before it.
        self._close(stream, sample)
        try:
            stream.sink.delta(sample, [], finish, stream.cached_tokens or 0, None)
        except Exception:
            logger.exception("the sink of request %d failed", stream.request)
            self.fail(stream, PyllmError(_SINK_FAILED))

    def _close(self, stream: Stream, sample: int) -> None:
        stream.journal.close(sample)
        stream.open_samples.discard(sample)
        if not stream.open_samples:
            self.forget(stream)


def _tell_prompt(stream: Stream, offset: int, start: int, end: int, logprobs: LogprobColumns | None) -> int | None:
    """Hand over what a row tells of the prompt; gives where its output starts, or None where some is missing before."""
    output = min(start - offset, end)
    num_fresh = stream.journal.accept_prompt(-offset, output - start)
    if num_fresh is None:
        return None
    entries = None if logprobs is None else logprobs.of(output - num_fresh, output)
    if entries is not None:
        stream.sink.prompt_logprobs(entries)
    return output
