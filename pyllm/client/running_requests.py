"""The running requests of one client: started, aborted, and sent again to a core that does not know them.

Keeps no connection: without one, requests wait in their journals. Knows neither calls nor readers.
"""

import logging
from collections.abc import Callable, Iterator

from pyllm.client.columns import decode_columns
from pyllm.client.core_connection import CoreConnection
from pyllm.client.journal import Journal
from pyllm.client.streams import OutputSink, Stream, Streams
from pyllm.client.token_reader import TokenDelta
from pyllm.errors import EngineDeadError, PyllmError, RequestError, RequestTooLargeError, blame
from pyllm.wire.messages import Abort, Deltas, Isolated, Rejected, Submit

# What a refused request fails with, by the code; with any other code the request is at fault.
_REJECTIONS: dict[str, type[PyllmError]] = {
    "draining": EngineDeadError,
    "error": PyllmError,
    "too_large": RequestTooLargeError,
}

# Cores that are lost while they compute nothing but one request, after which it is failed. A core may be ended from
# elsewhere, too, and by chance just then.
_LOSSES_ALONE = 2

logger = logging.getLogger(__name__)


class RunningRequests:
    """By the id that `start` gives. `ids` are used once each, and `clock` gives seconds."""

    def __init__(self, connection: CoreConnection, ids: Iterator[int], clock: Callable[[], float]) -> None:
        self._connection = connection
        self._ids = ids
        self._clock = clock
        self._streams = Streams()
        self._num_rounds = 0  # of sending all again

    def __len__(self) -> int:
        return len(self._streams)

    def wire_id(self, request: int) -> int | None:
        """The id that the core knows, unless the request has ended."""
        stream = self._streams.get(request)
        return None if stream is None else stream.wire_id

    def start(
        self, first: Submit, sink: OutputSink[TokenDelta], on_embedding: Callable[[bytes], None] | None = None
    ) -> int:
        """Send a request, or keep it for the next core."""
        now = self._clock()
        request = next(self._ids)
        stream = Stream(request, Journal(first, now), sink, on_embedding)
        stream.is_sent = self._connection.is_ready
        self._streams.add(stream)  # Before it is sent: a core in this process may answer at once.
        try:
            self._connection.post(stream.journal.submission(self._connection.epoch, request, now))
        except Exception:
            self._streams.forget(stream)
            raise
        return request

    def abort(self, request: int, sample: int = -1) -> None:
        """End a request, or one sample of it; the core gives it a last delta, and without one it has that at once."""
        stream = self._streams.get(request)
        if stream is None:
            return
        stream.journal.close(sample)
        if self._connection.is_ready:
            self._connection.post(Abort(self._connection.epoch, stream.wire_id, sample))
        else:
            self._streams.end_complete_samples(stream)

    def abort_all(self) -> None:
        """Tell the core that nobody wants any of it."""
        for stream in self._streams.all():
            self._connection.post(Abort(self._connection.epoch, stream.wire_id))

    def fail(self, request: int, error: PyllmError) -> None:
        """End a request with an error, at the core, too."""
        stream = self._streams.get(request)
        if stream is not None:
            self._connection.post(Abort(self._connection.epoch, stream.wire_id))
            self._streams.fail(stream, error)

    def fail_all(self, error: PyllmError) -> None:
        """End every request with an error; the core does not learn of it."""
        for stream in self._streams.all():
            self._streams.fail(stream, error)

    def beat(self) -> None:
        """End what has no time left and no core that could end it."""
        if self._connection.is_ready:
            return
        now = self._clock()
        for stream in self._streams.all():
            if stream.journal.is_expired(now):
                self._streams.expire(stream)

    def deliver(self, deltas: Deltas) -> None:
        """Hand out what is new.

        Raises:
            ValueError: the columns do not fit one another; nothing was handed out.
        """
        incomplete, failed = self._streams.deliver(decode_columns(deltas))
        for stream in failed:
            self._connection.post(Abort(self._connection.epoch, stream.wire_id))
        for stream in incomplete:
            logger.warning("tokens of request %d are missing; it is sent again", stream.request)
            self._resubmit(stream, is_known=True)

    def reject(self, rejected: Rejected) -> None:
        """End a request that the core refused, or that a worker failed on."""
        stream = None if rejected.request is None else self._streams.get_by_wire_id(rejected.request)
        if stream is not None:
            kind = _REJECTIONS.get(rejected.code)
            error = RequestError(rejected.message, rejected.parameter) if kind is None else kind(rejected.message)
            self._streams.fail(stream, error)

    def isolate(self, isolated: Isolated) -> None:
        """Note that a request is computed by itself, or is no longer."""
        stream = self._streams.get_by_wire_id(isolated.request)
        if stream is not None:
            stream.journal.isolate(isolated.stage)

    def lose_core(self, loss: EngineDeadError) -> None:
        """Note that the core was lost that had what was sent; a request that has ended several is failed."""
        for stream in self._streams.all():
            if not stream.is_sent:
                continue
            journal = stream.journal
            journal.lose_core()
            if journal.num_losses_alone >= _LOSSES_ALONE:
                error = PyllmError(f"{blame('engine core', journal.num_losses, _LOSSES_ALONE)}: {loss}")
                logger.error("request %d is failed: %s", stream.request, error)
                self._streams.fail(stream, error)

    def resubmit_all(self, is_same: bool, is_known: bool) -> None:
        """Send all to a core that is ready, in the order in which they came.

        Unless it `is_same` in what decides its tokens, what has some already ends with an error. With `is_known` it may
        be working on them still.
        """
        self._num_rounds += 1
        number = self._num_rounds
        for stream in self._streams.all():
            if number != self._num_rounds:
                return  # That core was lost meanwhile, and another one has got all of them.
            if is_same or not stream.journal.is_begun:
                self._resubmit(stream, is_known)
            else:
                text = "the engine core was lost, and the one that followed it has another model, dtype or machine"
                self._streams.fail(stream, EngineDeadError(f"{text}: this request cannot go on there"))

    def _resubmit(self, stream: Stream, is_known: bool) -> None:
        if self._streams.get(stream.request) is None:
            return  # It has ended while one before it was sent.
        if is_known:
            number = self._num_rounds
            self._connection.post(Abort(self._connection.epoch, stream.wire_id))
            if number != self._num_rounds:
                return  # That was when the core turned out to be lost.
        self._streams.rename(stream, next(self._ids))
        self._streams.end_complete_samples(stream)
        if self._streams.get(stream.request) is None:
            return
        self._connection.counts.num_resubmitted_requests += 1
        stream.is_sent = True
        stream.journal.isolate("aside")  # until it is told again
        submission = stream.journal.submission(self._connection.epoch, stream.wire_id, self._clock())
        try:
            self._connection.post(submission)
        except Exception as error:  # One that came without a core is encoded here for the first time.
            logger.exception("request %d cannot be sent", stream.request)
            self._streams.fail(stream, PyllmError(f"this request cannot be sent to the engine: {error}"))
