"""The running requests of one client: started, aborted, and sent to another core when theirs is lost or leaves.

Keeps no connection and chooses no core; without a core, requests wait in their journals. Knows no calls and no readers.
"""

import logging
from collections.abc import Callable, Iterator

import msgspec

from pyllm.client.columns import decode_columns
from pyllm.client.cores import Core, Cores
from pyllm.client.journal import Journal
from pyllm.client.streams import Loss, OutputSink, Stream, Streams
from pyllm.client.token_reader import TokenDelta
from pyllm.errors import EngineDeadError, PyllmError, RequestError, RequestTooLargeError, blame
from pyllm.wire.messages import Abort, Deltas, Isolated, LoadReport, Rejected, Reserve, Submit

# The error of a refused request, by its code; with any other code the request is at fault.
_REJECTIONS: dict[str, type[PyllmError]] = {
    "draining": EngineDeadError,
    "error": PyllmError,
    "too_large": RequestTooLargeError,
}

# Number of cores lost while one request ran alone, after which the request fails. One loss may be chance, such as a
# kill from outside.
_LOSSES_ALONE = 2

logger = logging.getLogger(__name__)


class RunningRequests:
    """Requests by the id that `start` returns. `ids` yields unused ids, `clock` gives seconds."""

    def __init__(self, cores: Cores, ids: Iterator[int], clock: Callable[[], float]) -> None:
        self._cores = cores
        self._ids = ids
        self._clock = clock
        self._streams = Streams(self._release)
        self._waiting: dict[int, Stream] = {}  # for a core, in order of arrival

    def __len__(self) -> int:
        return len(self._streams)

    def locate(self, request: int) -> tuple[Core | None, int] | None:
        """The core of a request, if it has one, and the id of the request there; None if the request has ended."""
        stream = self._streams.get(request)
        return None if stream is None else (self._core_of(stream), stream.wire_id)

    def start(
        self,
        first: Submit,
        sink: OutputSink[TokenDelta],
        on_embedding: Callable[[bytes], None] | None = None,
        session: str = "",
        wanted_core: int | None = None,
    ) -> int:
        """Send a request, or keep it for the next core. It goes to `wanted_core` if that may take it."""
        now = self._clock()
        request = next(self._ids)
        stream = Stream(request, Journal(first, now), sink, on_embedding, session, wanted_core=wanted_core)
        self._streams.add(stream)  # Before it is sent: a core in this process may answer at once.
        try:
            if not self._send(stream, now):
                self._wait(stream)
        except Exception:
            self._streams.forget(stream)
            raise
        return request

    def abort(self, request: int, sample: int = -1) -> None:
        """End a request, or one sample of it. The last delta comes from the core, or at once if no core has it."""
        stream = self._streams.get(request)
        if stream is None:
            return
        stream.journal.close(sample)
        if (core := self._core_of(stream)) is not None and core.connection.is_ready:
            core.connection.post(Abort(core.connection.epoch, stream.wire_id, sample))
        else:
            self._streams.end_complete_samples(stream)

    def abort_all(self) -> None:
        """Abort every request at its core."""
        for stream in self._streams.all():
            self._abort(stream)

    def fail(self, request: int, error: PyllmError) -> None:
        """End a request with an error, at the core, too."""
        stream = self._streams.get(request)
        if stream is not None:
            self._abort(stream)
            self._streams.fail(stream, error)

    def fail_all(self, error: PyllmError) -> None:
        """End every request with an error, without a message to the cores."""
        for stream in self._streams.all():
            self._streams.fail(stream, error)

    def beat(self) -> None:
        """Move requests away from cores that drain or stall; end expired requests that wait for a core."""
        for core in self._cores.all():
            if len(self._cores) > 1 and core.connection.is_ready:
                if core.connection.stage == "draining":
                    self.leave(core)
                elif core.connection.stage == "stalled":
                    self._lose_stalled(core)
        self.place_waiting()
        now = self._clock()
        for stream in list(self._waiting.values()):
            if stream.journal.is_expired(now):
                self._streams.expire(stream)
        for core in self._cores.to_reserve(self._waiting.values()):
            self._reserve(core)
        for core in self._cores.all():
            if core.is_reserved(now) and not core.takes_suspects(now):
                self._move_requests(core)  # Another core may have become ready meanwhile.

    def deliver(self, deltas: Deltas) -> None:
        """Deliver new tokens to their sinks.

        Raises:
            ValueError: the columns do not fit one another; nothing was delivered.
        """
        incomplete, failed = self._streams.deliver(decode_columns(deltas))
        for stream in failed:
            self._abort(stream)
        for stream in incomplete:
            logger.warning("tokens of request %d are missing; it is sent again", stream.request)
            self._abort(stream)
            self._detach(stream)
        if incomplete:
            self.place_waiting()

    def reject(self, rejected: Rejected) -> None:
        """End a request that a core refused or a worker failed; if the core only drains, it goes to another one."""
        stream = None if rejected.request is None else self._streams.get_by_wire_id(rejected.request)
        if stream is None:
            return
        if rejected.code == "weights" or (rejected.code == "draining" and len(self._cores) > 1):
            self._detach(stream)
            self.place_waiting()
            return
        kind = _REJECTIONS.get(rejected.code)
        error = RequestError(rejected.message, rejected.parameter) if kind is None else kind(rejected.message)
        self._streams.fail(stream, error)

    def take_report(self, core: Core, report: LoadReport) -> None:
        """Act on a core's report: free a newly reserved core, and send waiting suspects to a free one.

        Raises:
            ValueError: the report does not decode; it has changed nothing.
        """
        now = self._clock()
        took_suspects = core.takes_suspects(now)
        if self._cores.take_report(core, report):
            self._move_requests(core)
        if self._waiting and not took_suspects and core.takes_suspects(now):
            self.place_waiting()

    def isolate(self, isolated: Isolated) -> None:
        """Note that a request runs alone, or no longer does."""
        stream = self._streams.get_by_wire_id(isolated.request)
        if stream is not None:
            stream.journal.isolate(isolated.stage)

    def lose(self, core: Core, epoch: int, error: EngineDeadError) -> None:
        """Let all requests of a lost core wait for its successor, or for another core."""
        for stream in self._at(core):
            stream.loss = Loss(core.index, epoch, error)
            self._detach(stream)

    def change_weights(self, core: Core, *, continues: bool) -> None:
        """Note that a core computes with other weights from now on: requests that have begun only if it `continues`.

        Those that have begun otherwise are on their way there, and are refused.
        """
        for stream in self._at(core):
            if continues or not stream.journal.is_begun:
                stream.fingerprint = core.connection.fingerprint

    def has_waiting(self, core: Core) -> bool:
        """Whether requests wait for a core that have begun with the weights of this one."""
        waiting = self._waiting.values()
        return any(each.journal.is_begun and each.fingerprint == core.connection.fingerprint for each in waiting)

    def leave(self, core: Core) -> None:
        """Move a healthy core's requests to other cores."""
        for stream in self._at(core):
            self._abort(stream)
            self._detach(stream)

    def place_waiting(self) -> None:
        """Send waiting requests to the cores that may take them, in order of arrival."""
        for stream in list(self._waiting.values()):
            if stream.request not in self._waiting:
                continue  # It was sent or ended while an earlier one was sent.
            try:
                is_sent = self._send(stream, self._clock())
            except Exception as error:  # A request that came without a core is encoded here first.
                logger.exception("request %d cannot be sent", stream.request)
                self._streams.fail(stream, PyllmError(f"this request cannot be sent to the engine: {error}"))
                continue
            if not is_sent and (reason := self._cores.why_none_fits(stream)):
                text = f"this request cannot go on: its core was lost, and {reason}"
                self._streams.fail(stream, EngineDeadError(text))

    def _send(self, stream: Stream, now: float) -> bool:
        """Send a request to a core, if one may take it. Also True if the request has ended instead."""
        candidates = self._cores.candidates(stream)
        if not candidates:
            return False
        is_resumed = self._waiting.pop(stream.request, None) is not None
        if is_resumed:
            self._streams.rename(stream, next(self._ids))
        core = self._cores.place(stream, candidates)
        epoch, loss = core.connection.epoch, stream.loss
        stream.core, stream.loss, stream.waits_since = core.index, None, None
        if loss is not None and not loss.is_of(core.index, epoch) and self._is_failed_by(stream, loss.error):
            return True
        if is_resumed:
            self._streams.end_complete_samples(stream)
            if self._streams.get(stream.request) is None:
                return True
            self._cores.counts.num_resubmitted_requests += 1
            stream.journal.isolate("aside")  # until the core reports again
        if stream.journal.is_suspect and self._cores.add_suspect(core, stream):
            self._reserve(core)
        if not stream.journal.is_begun:
            stream.fingerprint = core.connection.fingerprint
        alone = stream.is_to_run_alone
        submission = stream.journal.submission(epoch, stream.wire_id, now, is_to_run_alone=alone)
        if stream.journal.is_begun:
            version = core.connection.model.weights_version
            submission = msgspec.structs.replace(submission, weights_version=version)
        core.connection.post(submission)
        return True

    def _is_failed_by(self, stream: Stream, error: EngineDeadError) -> bool:
        """Count the loss of a request's core; fail the request, and return True, after several losses while alone."""
        journal = stream.journal
        journal.lose_core()
        if journal.num_losses_alone < _LOSSES_ALONE:
            return False
        failure = PyllmError(f"{blame('engine core', journal.num_losses, _LOSSES_ALONE)}: {error}")
        logger.error("request %d is failed: %s", stream.request, failure)
        self._streams.fail(stream, failure)
        return True

    def _lose_stalled(self, core: Core) -> None:
        for stream in self._at(core):
            self._abort(stream)
        # The core may continue, so it gets no successor (epoch -1); its requests are suspects nevertheless.
        self.lose(core, -1, EngineDeadError("the engine core has stalled"))

    def _reserve(self, core: Core) -> None:
        core.connection.post(Reserve(core.epoch))

    def _move_requests(self, core: Core) -> None:
        """Move requests that are not suspects from a reserved core to others, if these can take them."""
        moved = [stream for stream in self._at(core) if self._cores.must_move(stream, core)]
        for stream in moved:
            self._abort(stream)
            self._detach(stream)
        if moved:
            logger.warning("core %d is reserved: %d requests go to others", core.index, len(moved))
            self.place_waiting()

    def _wait(self, stream: Stream) -> None:
        stream.waits_since = self._clock()
        self._waiting[stream.request] = stream

    def _detach(self, stream: Stream) -> None:
        """Remove a request from its core, and let it wait for one."""
        core = self._core_of(stream)
        if core is not None and self._streams.get(stream.request) is not None:
            self._cores.release(core, stream)
            # The new id makes later messages of the old core, such as the end by our abort, go unnoticed.
            self._streams.rename(stream, next(self._ids))
            stream.core = None
            self._wait(stream)

    def _release(self, stream: Stream) -> None:
        """Forget a request that has ended."""
        self._waiting.pop(stream.request, None)
        if (core := self._core_of(stream)) is not None:
            self._cores.release(core, stream)

    def _abort(self, stream: Stream) -> None:
        if (core := self._core_of(stream)) is not None:
            core.connection.post(Abort(core.connection.epoch, stream.wire_id))

    def _core_of(self, stream: Stream) -> Core | None:
        return None if stream.core is None else self._cores.get(stream.core)

    def _at(self, core: Core) -> list[Stream]:
        return [stream for stream in self._streams.all() if stream.core == core.index]
