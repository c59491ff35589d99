"""A client's cores: which exist, which may take a request, and which take requests suspected of ending a core.

Sends nothing. Knows of a request only whether it is suspect and where it began.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

import msgspec

from pyllm.client.core_connection import Condition, ConnectionCounts, CoreConnection
from pyllm.client.core_reservation import CoreReservation
from pyllm.client.placers import Placer
from pyllm.client.streams import Stream
from pyllm.client.submission import has_room, most_tokens
from pyllm.errors import EngineDeadError, PyllmError
from pyllm.wire.messages import LoadReport, ModelInfo

# Seconds in which a core that has followed a lost one takes only what was lost with it: every client that knew the
# lost one has sent that by then.
PROBATION = 5.0
# Seconds that a suspect waits for an idle core. After the first, a busy core is reserved for it; after the second, it
# goes to a busy core and runs alone there.
EVACUATION_DELAY = 3.0
SUSPECT_PATIENCE = 10.0
# `SUSPECT_PATIENCE` while a lost core may still have a successor: loading a model's weights takes longer than that.
SUCCESSOR_PATIENCE = 120.0
# Seconds in which a core that was asked to be reserved should say so; no other core is asked meanwhile.
ANSWER_PATIENCE = 2.0

logger = logging.getLogger(__name__)


class CoreReport(msgspec.Struct, frozen=True):
    """A core as its client sees it, with this client's requests there. One that `is_leaving` gets no others.

    `has_unsuspected_requests`: some were never lost with a core, of whatever client.
    """

    index: int
    address: str
    epoch: int
    model: str
    fingerprint: str
    condition: Condition
    max_num_seqs: int
    num_requests: int
    is_leaving: bool
    has_unsuspected_requests: bool


class Core:
    """One core, and what the client has there. `suspects` were lost with a core before, and may have ended it.

    Times are of the client's clock.
    """

    def __init__(self, index: int, address: str) -> None:
        self.index = index
        self.address = address
        self.connection: CoreConnection
        self.epoch = 0  # that was ready last
        self.failure: PyllmError | None = None  # Why it cannot be used, for good.
        self.is_leaving = False
        self.num_requests = 0
        self.num_reported_unsuspected = 0  # requests, of all clients, when last heard
        self.probation_until = 0.0
        self.reservation = CoreReservation()
        self.suspects: dict[int, Stream] = {}
        self.emptied = asyncio.Event()  # set while it has none of this client's requests
        self.emptied.set()

    @property
    def is_open(self) -> bool:
        """Whether requests may be sent to it."""
        return self.connection.is_ready and not self.is_leaving and self.failure is None

    @property
    def has_unsuspected_requests(self) -> bool:
        """Whether it computes requests that were never lost with a core, as far as this client knows.

        If this client has none there, the reported ones may be its own that have just left, until the next report.
        """
        return self.num_unsuspected > 0

    @property
    def num_unsuspected(self) -> int:
        """How many those are, at least."""
        return max(self.num_reported_unsuspected, self.num_requests - len(self.suspects))

    def takes_suspects(self, now: float) -> bool:
        """Whether suspects may go there."""
        return now < self.probation_until or not self.has_unsuspected_requests or self.reservation.takes_suspects(now)

    def take_report(self, report: LoadReport, now: float) -> bool:
        """What it says of itself; gives whether it is reserved from now on."""
        self.num_reported_unsuspected = report.num_requests - report.num_lost_before
        return self.reservation.take(report.reserved_for, now, is_free=not self.has_unsuspected_requests)

    def begin(self, probation_until: float) -> None:
        """It is ready, and none of what was known of the one before is true of it."""
        self.epoch = self.connection.epoch
        self.num_reported_unsuspected = 0
        self.probation_until = probation_until
        self.reservation = CoreReservation()

    def clear_suspects(self) -> bool:
        """Forget those that are suspects no longer; gives whether some are left."""
        if self.suspects:
            self.suspects = {key: stream for key, stream in self.suspects.items() if stream.is_suspect}
        return bool(self.suspects)

    def report(self) -> CoreReport:
        """For those who operate it."""
        connection, has_answered = self.connection, bool(self.connection.fingerprint)
        return CoreReport(
            self.index,
            self.address,
            connection.epoch,
            connection.model.name if has_answered else "",
            connection.fingerprint,
            Condition(False, reason=str(self.failure)) if self.failure else connection.condition(),
            connection.model.max_num_seqs if has_answered else 0,
            self.num_requests,
            self.is_leaving,
            self.has_unsuspected_requests,
        )


class Cores:
    """In the order in which they were added. `make_placer` is called with the model of the first core that is ready."""

    def __init__(self, make_placer: Callable[[ModelInfo], Placer], clock: Callable[[], float]) -> None:
        self.counts = ConnectionCounts()
        self._cores: dict[int, Core] = {}
        self._next_index = 0
        self._make_placer = make_placer
        self._placer: Placer | None = None
        self._model: ModelInfo | None = None
        self._fingerprint = ""
        self._required = ""
        self._clock = clock
        self._asked_until = 0.0  # a core that has not said yet that it is reserved

    def __len__(self) -> int:
        return len(self._cores)

    def all(self) -> Sequence[Core]:
        """Every core that has not left."""
        return list(self._cores.values())

    def get(self, index: int) -> Core | None:
        """The core of this index, unless it has left."""
        return self._cores.get(index)

    @property
    def any_ready(self) -> Core:
        """One that is ready, if there is one, else the oldest."""
        return next((core for core in self._cores.values() if core.is_open), next(iter(self._cores.values())))

    @property
    def model(self) -> ModelInfo:
        """What a core said of it that was ready when no other one was."""
        assert self._model is not None, "no core was ready yet"
        return self._model

    @property
    def fingerprint(self) -> str:
        """Of the model of `model`; empty before."""
        return self._fingerprint

    def require_fingerprint(self, fingerprint: str) -> list[Core]:
        """Let only cores of this fingerprint become ready; gives the open ones that have another. Empty: any."""
        self._required = fingerprint
        return [core for core in self.all() if core.is_open and fingerprint not in ("", core.connection.fingerprint)]

    def add(self, address: str, index: int | None = None) -> Core:
        """A place for a core, without a connection yet; without an `index` it gets the next one."""
        index = self._next_index if index is None else index
        core = self._cores[index] = Core(index, address)
        self._next_index = max(self._next_index, index + 1)
        return core

    def remove(self, core: Core) -> None:
        """It has left."""
        del self._cores[core.index]
        self.forget(core)

    def become_ready(self, core: Core, *, follows_loss: bool) -> EngineDeadError | None:
        """A core has answered; it may have followed one that was lost. One beside others must give the same tokens.

        Gives why the core cannot be used, if it cannot; that is for `refuse`.
        """
        connection = core.connection
        others = [each for each in self._cores.values() if each.is_open and each is not core]
        if (same := next((each for each in others if each.connection.epoch == connection.epoch), None)) is not None:
            return EngineDeadError(f"the core at {core.address} is core {same.index} already, by another address")
        required = self._required or (others[0].connection.fingerprint if others else connection.fingerprint)
        if connection.fingerprint != required:
            return self.fingerprint_error(core, required)
        if not others:
            self._model, self._fingerprint = connection.model, connection.fingerprint
        if self._placer is None:
            self._placer = self._make_placer(connection.model)
        core.begin(self._clock() + PROBATION if follows_loss else 0.0)
        self._placer.add(core.index)
        return None

    @staticmethod
    def fingerprint_error(core: Core, required: str) -> EngineDeadError:
        """What is wrong with a core that has not the required fingerprint."""
        own = core.connection.fingerprint[:8]
        text = f"the core at {core.address} would give other tokens (fingerprint {own}, not {required[:8]})"
        return EngineDeadError(f"{text}: start it with the same model, dtype, number of ranks and kind of processor")

    def refuse(self, core: Core, error: PyllmError) -> None:
        """It cannot be used, and is not asked again."""
        if len(self._cores) > 1:
            logger.error("%s; it is not used", error)
        core.failure = error
        core.connection.close()

    def forget(self, core: Core) -> None:
        """The core was lost, or restarted without its requests."""
        if self._placer is not None:
            self._placer.remove(core.index)

    def take_report(self, core: Core, report: LoadReport) -> bool:
        """What a core says of itself; gives whether it is reserved from now on."""
        self.placer.update_core(core.index, report)
        return core.take_report(report, self._clock())

    @property
    def placer(self) -> Placer:
        """Once a core was ready."""
        assert self._placer is not None, "no core was ready yet"
        return self._placer

    def candidates(self, stream: Stream) -> list[Core]:
        """The cores that may take a request now; while there is none, it waits."""
        if len(self._cores) == 1:
            return [core for core in self._cores.values() if core.is_open and self._fits(core, stream)]
        usable, now = self._usable(stream), self._clock()
        if not stream.is_suspect:
            return self._for_unsuspected(usable, now) or usable
        if (loss := stream.loss) is not None:
            same = [core for core in usable if loss.is_of(core.index, core.connection.epoch)]
            if same:
                return same
        is_successor_awaited = self._awaits_successor()
        apart = [core for core in usable if core.takes_suspects(now)]
        if is_successor_awaited and len(usable) == 1:  # What comes now has nowhere else to go: it is not free for long.
            apart = [core for core in apart if now < core.probation_until or core.reservation.takes_suspects(now)]
        waits_since = now if stream.waits_since is None else stream.waits_since
        patience = SUCCESSOR_PATIENCE if is_successor_awaited else SUSPECT_PATIENCE
        stream.is_to_run_alone = not apart and now - waits_since >= patience
        return usable if stream.is_to_run_alone else apart

    def place(self, stream: Stream, candidates: Sequence[Core]) -> Core:
        """Choose one of these for a request, and count it there."""
        first, indices = stream.journal.first, [core.index for core in candidates]
        if stream.wanted_core in indices:
            indices = [stream.wanted_core]
        core = self._cores[self.placer.place(stream.wire_id, first, stream.session, indices)]
        core.num_requests += 1
        core.emptied.clear()
        return core

    def release(self, core: Core, stream: Stream) -> None:
        """A request is there no more, or goes by another id."""
        core.num_requests -= 1
        core.suspects.pop(stream.request, None)
        if not core.num_requests:
            core.emptied.set()
        self.placer.ended(stream.wire_id)

    def why_none_fits(self, stream: Stream) -> str:
        """Why none of the cores, which are all there, can ever take a request; else empty."""
        cores = [core for core in self._cores.values() if not core.is_leaving and core.failure is None]
        if not cores or any(not core.connection.is_ready or self._fits(core, stream) for core in cores):
            return ""
        first, fingerprint = stream.journal.first, stream.fingerprint
        if any(core.connection.fingerprint == fingerprint or not stream.journal.is_begun for core in cores):
            text = f"no other core has room for its {most_tokens(first)} tokens in {first.n} sequences"
            return f"{text}; start each with the same --max-model-len, and with enough KV cache and --max-num-seqs"
        advice = "start one with the same model, dtype, number of ranks and kind of processor"
        return f"no core has that one's fingerprint {fingerprint[:8]}; {advice}"

    def to_reserve(self, waiting: Iterable[Stream]) -> Iterable[Core]:
        """The cores to send `Reserve` to.

        They are those whose reservation our suspects still need, and one for suspects that have waited too long. A core
        that is reserved already comes first, whoever asked for it; then the least busy one.
        """
        now = self._clock()
        asked = {core.index: core for core in self.all() if core.clear_suspects() and core.reservation.is_active(now)}
        for stream in waiting:
            if (core := self._core_for_suspect(stream, now)) is not None:
                asked[core.index] = core
        return asked.values()

    def add_suspect(self, core: Core, stream: Stream) -> bool:
        """Note that a suspect goes to a core; gives whether that is to be reserved, so that nobody sends others there.

        Not so where it runs alone among others, since these need not move.
        """
        now = self._clock()
        is_first = not core.suspects and not core.reservation.is_active(now)
        core.suspects[stream.request] = stream
        return is_first and core.takes_suspects(now) and len(self._usable(stream)) > 1

    def must_move(self, stream: Stream, core: Core) -> bool:
        """Whether a request has to go from a core because that is reserved, and another one can take it."""
        if stream.is_suspect:
            return False
        fit = self._for_unsuspected(self._usable(stream), self._clock())
        return bool(fit) and core not in fit

    def beat(self) -> None:
        """Half a second has passed."""
        if self._placer is not None:
            self._placer.beat()

    def close(self) -> None:
        """Nothing more will be placed."""
        if self._placer is not None:
            self._placer.close()

    def condition(self) -> Condition:
        """Ready if one is; else how the first is."""
        conditions = [core.connection.condition() for core in self._cores.values() if core.failure is None]
        return next((each for each in conditions if each.ready), conditions[0] if conditions else Condition(False))

    def _core_for_suspect(self, stream: Stream, now: float) -> Core | None:
        """The core to reserve for a request that waits, if that is a suspect that has waited too long."""
        if not stream.is_suspect or stream.waits_since is None or now - stream.waits_since < EVACUATION_DELAY:
            return None
        usable = self._usable(stream)
        core = _first_reserved(usable, now)
        if core is None and now >= self._asked_until and (core := _least_busy(usable, now)) is not None:
            logger.warning("core %d is to be made free for requests that were lost with another one", core.index)
            self._asked_until = now + ANSWER_PATIENCE
        return core

    def _for_unsuspected(self, usable: Sequence[Core], now: float) -> list[Core]:
        """Those where a request shares no step with suspects; of cores that are all reserved, all but the first."""
        fit = [core for core in usable if now >= core.probation_until and not core.clear_suspects()]
        unreserved = [core for core in fit if not core.reservation.is_active(now)]
        first = _first_reserved(usable, now)
        return unreserved or [core for core in fit if core is not first]

    def _awaits_successor(self) -> bool:
        cores = [core for core in self._cores.values() if core.failure is None and not core.is_leaving]
        return any(0 < core.connection.outage < SUCCESSOR_PATIENCE for core in cores)

    def _usable(self, stream: Stream) -> list[Core]:
        """The best that there are: those that recover or are silent for a moment only where there are no others."""
        fits = [
            core
            for core in self._cores.values()
            if core.is_open and core.connection.stage in ("ready", "recovering") and self._fits(core, stream)
        ]
        return [core for core in fits if core.connection.condition().ready] or fits

    def _fits(self, core: Core, stream: Stream) -> bool:
        if stream.journal.is_begun and core.connection.fingerprint != stream.fingerprint:
            return False
        return has_room(core.connection.model, stream.journal.first)


def _first_reserved(usable: Sequence[Core], now: float) -> Core | None:
    """The reserved core; of several, which two clients have chosen at the same time, the same one for all clients."""
    return min((core for core in usable if core.reservation.is_active(now)), key=lambda core: core.epoch, default=None)


def _least_busy(usable: Sequence[Core], now: float) -> Core | None:
    """The core that is made free soonest, mostly the same one for all clients; see `_first_reserved` for two.

    None where no other one could take its work.
    """
    able = [core for core in usable if now >= core.reservation.rests_until] if len(usable) > 1 else []
    return min(able, key=lambda core: (core.num_unsuspected, core.epoch), default=None)
