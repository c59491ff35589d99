"""The streams of one client: routes tokens to requests, and knows which samples have not ended. Sends nothing."""

import logging
from collections.abc import Callable
from itertools import repeat
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from pyllm.client.columns import Columns
from pyllm.client.journal import Journal
from pyllm.client.logprobs import LogprobColumns, LogprobEntries
from pyllm.client.token_reader import TokenDelta
from pyllm.errors import EngineDeadError, PyllmError
from pyllm.wire.messages import FinishCode

_SINK_FAILED = "the output of this request could not be processed"

logger = logging.getLogger(__name__)


DeltaT_contra = TypeVar("DeltaT_contra", contravariant=True)


class OutputSink(Protocol[DeltaT_contra]):
    """Receives the output of one request, as tokens or as text. The event loop calls it, so it must not block.

    `index` numbers the samples of a prompt; with several prompts, prompt by prompt.
    """

    def delta(self, index: int, delta: DeltaT_contra) -> None:
        """Take new output of one sample; a delta with a finish reason is its last. The sink may keep and change it."""

    def prompt_logprobs(self, index: int, logprobs: list[LogprobEntries]) -> None:
        """Take those of the prompt's next tokens, from its second on; they precede any output of sample 0."""

    def error(self, error: PyllmError) -> None:
        """The request has failed; nothing follows."""


class PromptSink:
    """Passes on a prompt's log-probabilities, and drops the one token that every prompt's last step samples."""

    def __init__(self, sink: OutputSink[TokenDelta]) -> None:
        self._sink = sink

    def delta(self, index: int, delta: TokenDelta) -> None:
        """Pass on a sample's end, without tokens; a stop counts as reaching the length."""
        if not delta.finish:
            return
        finish = FinishCode.LENGTH if delta.finish == FinishCode.STOP else delta.finish
        self._sink.delta(index, msgspec.structs.replace(delta, tokens=[], finish=finish, logprobs=None))

    def prompt_logprobs(self, index: int, logprobs: list[LogprobEntries]) -> None:
        """Pass on log-probabilities of the prompt."""
        self._sink.prompt_logprobs(index, logprobs)

    def error(self, error: PyllmError) -> None:
        """Pass on the failure."""
        self._sink.error(error)


class Loss(NamedTuple):
    """The core that a request was lost with, and how."""

    core: int
    epoch: int
    error: EngineDeadError

    def is_of(self, core: int, epoch: int) -> bool:
        """Whether this is the same core in the same epoch: it was only out of reach, and has not crashed."""
        return (self.core, self.epoch) == (core, epoch)


class Stream:
    """One request: its journal, its sink, and the samples that have not had their last delta.

    `cached_tokens` is set with the first tokens, and not changed when another core continues the request. An embedding
    is passed to `on_embedding`, float32, before the last delta.

    `wanted_core` gets the request if it can take it. The request is on `core`, or waits for one since `waits_since`,
    after `loss` if its core was lost. Once it has output, it continues only on a core with the same `fingerprint`.
    """

    __slots__ = (
        "cached_tokens",
        "core",
        "fingerprint",
        "is_to_run_alone",
        "journal",
        "loss",
        "on_embedding",
        "open_samples",
        "request",
        "session",
        "sink",
        "waits_since",
        "wanted_core",
        "wire_id",
    )

    def __init__(
        self,
        request: int,
        journal: Journal,
        sink: OutputSink[TokenDelta],
        on_embedding: Callable[[bytes], None] | None = None,
        session: str = "",
        *,
        wanted_core: int | None = None,
    ) -> None:
        self.request = request
        self.wire_id = request  # another one after a resubmission: ids are never used twice
        self.journal = journal
        self.sink = sink
        self.on_embedding = on_embedding
        self.session = session
        self.wanted_core = wanted_core
        self.open_samples = set(range(journal.num_samples))
        self.cached_tokens: int | None = None
        self.core: int | None = None
        self.fingerprint = ""
        self.loss: Loss | None = None
        self.waits_since: float | None = None
        self.is_to_run_alone = False  # sent to a busy core, which must run it by itself from the start

    @property
    def is_suspect(self) -> bool:
        """Whether it was lost with a core that it may have crashed, and has had hardly any tokens since."""
        return self.loss is not None or self.journal.is_suspect


class Streams:
    """Streams by the caller's id, and by the id that the core knows. `on_end` is called when one ends."""

    def __init__(self, on_end: Callable[[Stream], None] = lambda stream: None) -> None:
        self._on_end = on_end
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
        """The stream of the core's id, unless it has ended or has another id now."""
        return self._by_wire_id.get(wire_id)

    def rename(self, stream: Stream, wire_id: int) -> None:
        """Give the stream a fresh id; messages for the old one are dropped."""
        del self._by_wire_id[stream.wire_id]
        stream.wire_id = wire_id
        self._by_wire_id[wire_id] = stream

    def deliver(self, columns: Columns) -> tuple[list[Stream], list[Stream]]:
        """Deliver every row to its sink.

        Returns the streams that miss tokens and must be sent again, and those that ended because their sink failed;
        each stream once.
        """
        requests, samples, offsets, starts, tokens, finishes, cached_counts, logprobs, embeddings, start_times = columns
        streams = self._by_wire_id
        for row, values in (embeddings or {}).items():
            stream = streams.get(requests[row])
            if stream is not None and stream.on_embedding is not None:
                stream.on_embedding(values)
        incomplete: dict[int, Stream] = {}
        failed = []
        times = map(start_times.get, range(len(requests))) if start_times else repeat(None)
        for wire_id, sample, offset, start, end, finish, cached, begun in zip(
            requests, samples, offsets, starts, starts[1:], finishes, cached_counts, times, strict=False
        ):
            stream = streams.get(wire_id)
            if stream is None or sample not in stream.open_samples:
                continue
            try:
                if offset >= 0:
                    fresh = stream.journal.accept(sample, offset, tokens[start:end])
                else:
                    output = _deliver_prompt(stream, offset, start, end, logprobs)
                    fresh = None if output is None else stream.journal.accept(sample, 0, tokens[output:end])
                if fresh is None:
                    incomplete[stream.request] = stream
                    continue
                if finish:
                    self._close(stream, sample)
                elif not fresh:
                    continue
                entries = None if logprobs is None else logprobs.of(end - len(fresh), end)
                cached_tokens = stream.cached_tokens
                if cached_tokens is None:
                    cached_tokens = cached
                    if fresh:
                        stream.cached_tokens = cached
                stream.sink.delta(sample, TokenDelta(sample, fresh, finish, cached_tokens, entries, None, begun))
            except Exception:  # One caller's fault must not end the streams of the others.
                logger.exception("the sink of request %d failed", stream.request)
                self.fail(stream, PyllmError(_SINK_FAILED))
                failed.append(stream)
        return [stream for request, stream in incomplete.items() if request in self._by_request], failed

    def end_complete_samples(self, stream: Stream) -> None:
        """Give a last delta to samples that are closed or have all their tokens, because no core will."""
        for sample in list(stream.open_samples):
            if finish := stream.journal.ending(sample):
                self._end_sample(stream, sample, finish)

    def expire(self, stream: Stream) -> None:
        """Give a last delta to every sample, because the timeout has passed."""
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
        if self._by_request.pop(stream.request, None) is not None:
            del self._by_wire_id[stream.wire_id]
            self._on_end(stream)

    def _end_sample(self, stream: Stream, sample: int, finish: FinishCode) -> None:
        if sample not in stream.open_samples or self.get(stream.request) is None:
            return  # The sink has ended it while taking an earlier delta.
        self._close(stream, sample)
        try:
            stream.sink.delta(sample, TokenDelta(sample, [], finish, stream.cached_tokens or 0))
        except Exception:
            logger.exception("the sink of request %d failed", stream.request)
            self.fail(stream, PyllmError(_SINK_FAILED))

    def _close(self, stream: Stream, sample: int) -> None:
        stream.journal.close(sample)
        stream.open_samples.discard(sample)
        if not stream.open_samples:
            self.forget(stream)


def _deliver_prompt(stream: Stream, offset: int, start: int, end: int, logprobs: LogprobColumns | None) -> int | None:
    """Deliver a row's prompt log-probabilities; returns the start of its output, or None if some before are missing."""
    output = min(start - offset, end)
    num_fresh = stream.journal.accept_prompt(-offset, output - start)
    if num_fresh is None:
        return None
    entries = None if logprobs is None else logprobs.of(output - num_fresh, output)
    if entries is not None:
        stream.sink.prompt_logprobs(0, entries)
    return output
