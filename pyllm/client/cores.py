"""A client's cores: which exist, which may take a request, and which take requests suspected of ending a core.

Sends nothing. Knows of a request only whether it is suspect and where it began.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from pyllm.client.core_connection import Condition, ConnectionCounts, CoreConnection
from pyllm.client.placers import Placer
from pyllm.client.streams import Stream
from pyllm.client.submission import has_room, most_tokens
from pyllm.errors import EngineDeadError, PyllmError
from pyllm.wire.messages import Adapter, LoadReport, ModelInfo

# Seconds in which the successor of a lost core takes only requests that were lost with it: by then every client of the
# lost core has sent them.
PROBATION = 5.0
# Seconds that a suspect waits for an idle core. After the first, a busy core is reserved for it; after the second, it
# goes to a busy core and runs alone there.
EVACUATION_DELAY = 3.0
SUSPECT_PATIENCE = 10.0
# Seconds in which a lost core may still have a successor, as loading a model's weights takes some; until then suspects
# wait so long, and so does a pause.
SUCCESSOR_PATIENCE = 120.0
# Seconds in which a core that was sent `Reserve` should report it; no other core is asked meanwhile.
ANSWER_PATIENCE = 2.0
# The longest reservation in seconds. By then a core has not become free if some client has no other one. So it counts
# as not reserved for as long again, and a different one is made free.
MAX_RESERVATION = 30.0

NEVER = float("-inf")

logger = logging.getLogger(__name__)


class CoreReport(msgspec.Struct, frozen=True):
    """A core as its client sees it, with this client's requests there. If it `is_leaving`, it gets no new ones.

    `has_unsuspected_requests`: it has requests, of any client, that were never lost with a core.
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
    """One core, and the client's requests there. `suspects` were lost with a core before, and may have crashed it.

    Times are by the client's clock.
    """

    def __init__(self, index: int, address: str) -> None:
        self.index = index
        self.address = address
        self.connection: CoreConnection
        self.epoch = 0  # of the last core that was ready
        self.failure: PyllmError | None = None  # the reason why it can never be used
        self.is_leaving = False
        self.num_requests = 0
        self.num_reported_unsuspected = 0  # requests of all clients, in the last report
        self.probation_until = 0.0
        self._reserved_until = 0.0
        self._last_end = NEVER  # the latest end of the reservation; a past one that ended so late counts for a rest
        self._was_freed = False  # whether it had only suspects at some time of its reservation
        self.suspects: dict[int, Stream] = {}
        self.adapters: Mapping[str, Adapter] | None = None  # in its last list, by name
        self.adapters_epoch = 0  # of that list
        self.awaited_adapters: dict[str, Adapter] = {}  # by key: those that it will have, unless it cannot
        self.emptied = asyncio.Event()  # set while it has none of this client's requests
        self.emptied.set()

    @property
    def is_open(self) -> bool:
        """Whether requests may be sent to it."""
        return self.connection.is_ready and not self.is_leaving and self.failure is None

    @property
    def awaits_successor(self) -> bool:
        """Whether it was lost, and another core may still take its place."""
        is_lost = self.connection.loss and not self.connection.is_ready
        return bool(is_lost) and self.failure is None and self.connection.outage < SUCCESSOR_PATIENCE

    @property
    def has_unsuspected_requests(self) -> bool:
        """Whether it computes requests that were never lost with a core, as far as this client knows.

        Until the next report, the reported requests may be this client's own that have just left.
        """
        return self.num_unsuspected > 0

    @property
    def num_unsuspected(self) -> int:
        """A lower bound of the number of these requests."""
        return max(self.num_reported_unsuspected, self.num_requests - len(self.suspects))

    def has_adapter(self, adapter: str) -> bool:
        """Whether its list has an adapter of this name, or of this key."""
        known = (self.adapters or {}).get(adapter.partition("@")[0])
        return known is not None and adapter in (known.name, known.key)

    def is_reserved(self, now: float) -> bool:
        """Whether only suspects go to it, if other cores can take the rest."""
        return now < self._reserved_until

    def rests(self, now: float) -> bool:
        """Whether it was reserved for `MAX_RESERVATION`, and cannot be again yet."""
        return 0 <= now - self._last_end < MAX_RESERVATION

    def is_set_apart(self, now: float) -> bool:
        """Whether it is for suspects only. Other requests there are suspects that were cleared."""
        return now < self.probation_until or (self._was_freed and self.is_reserved(now))

    def takes_suspects(self, now: float) -> bool:
        """Whether suspects may be sent to it."""
        return not self.has_unsuspected_requests or self.is_set_apart(now)

    def take_report(self, report: LoadReport, now: float) -> bool:
        """Take the core's report; returns whether a reservation begins."""
        self.num_reported_unsuspected = report.num_requests - report.num_lost_before
        begins = report.reserved_for > 0 and not self.is_reserved(now) and not self.rests(now)
        if begins:
            self._last_end = now + MAX_RESERVATION
        elif not report.reserved_for and not self.rests(now):
            self._last_end = NEVER
        self._was_freed = not self.has_unsuspected_requests or (self._was_freed and not begins)
        self._reserved_until = min(now + report.reserved_for, self._last_end)
        return begins

    def begin(self, probation_until: float) -> None:
        """Note that the core is ready, and forget the state of the one before it."""
        self.epoch = self.connection.epoch
        self.num_reported_unsuspected = 0
        self.probation_until = probation_until
        self._reserved_until = 0.0
        self._last_end = NEVER

    def clear_suspects(self) -> bool:
        """Forget requests that are suspects no longer; returns whether any suspect is left."""
        if self.suspects:
            self.suspects = {key: stream for key, stream in self.suspects.items() if stream.is_suspect}
        return bool(self.suspects)

    def report(self) -> CoreReport:
        """Report on the core for operators."""
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
    """Cores in the order of their addition. `make_placer` is called with the model of the first core that is ready."""

    def __init__(self, make_placer: Callable[[ModelInfo], Placer], clock: Callable[[], float]) -> None:
        self.counts = ConnectionCounts()
        self._cores: dict[int, Core] = {}
        self._next_index = 0
        self._make_placer = make_placer
        self._placer: Placer | None = None
        self._model: ModelInfo | None = None
        self._base_fingerprint = ""
        self._required = ""
        self._clock = clock
        self._asked_until = 0.0  # no core is asked to be reserved before this time

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
        """The first open core, or the oldest one if none is open."""
        return next((core for core in self._cores.values() if core.is_open), next(iter(self._cores.values())))

    @property
    def model(self) -> ModelInfo:
        """The model, as described by the last core that became ready while no other core was open."""
        assert self._model is not None, "no core was ready yet"
        return self._model

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the core that described `model`, with the current weights; empty before."""
        version = "" if self._model is None else self._model.weights_version
        return f"{self._base_fingerprint}+{version}" if version else self._base_fingerprint

    @property
    def base_fingerprint(self) -> str:
        """`fingerprint` with the weights that the core was started with."""
        return self._base_fingerprint

    def change_weights(self, version: str) -> None:
        """Note the version of the weights that new requests are to have: the last one that a core has begun with."""
        assert self._model is not None, "a core was ready"
        self._model = msgspec.structs.replace(self._model, weights_version=version)
        if self._placer is not None:
            self._placer.change_weights(version)

    def require_fingerprint(self, fingerprint: str) -> list[Core]:
        """Let only cores with this fingerprint become ready; returns the open ones with another. Empty: any."""
        self._required = fingerprint
        return [
            core for core in self.all() if core.is_open and fingerprint not in ("", core.connection.base_fingerprint)
        ]

    def add(self, address: str, index: int | None = None) -> Core:
        """Add a core without a connection. Without an `index` it gets the next one."""
        index = self._next_index if index is None else index
        core = self._cores[index] = Core(index, address)
        self._next_index = max(self._next_index, index + 1)
        return core

    def remove(self, core: Core) -> None:
        """Remove a core that has left."""
        del self._cores[core.index]
        self.forget(core)

    def become_ready(self, core: Core, *, follows_loss: bool) -> EngineDeadError | None:
        """Take a core that has answered into use. `follows_loss`: it succeeds a lost one.

        Returns an error for `refuse` if the core cannot be used: it is known already, or would give other tokens.
        """
        connection = core.connection
        others = [each for each in self._cores.values() if each.is_open and each is not core]
        if (same := next((each for each in others if each.connection.epoch == connection.epoch), None)) is not None:
            return EngineDeadError(f"the core at {core.address} is core {same.index} already, by another address")
        own = connection.base_fingerprint
        required = self._required or (others[0].connection.base_fingerprint if others else own)
        if own != required:
            return self.fingerprint_error(core, required)
        if not others:
            self._model, self._base_fingerprint = connection.model, connection.base_fingerprint
            self.change_weights(connection.model.weights_version)
        if self._placer is None:
            self._placer = self._make_placer(connection.model)
            self._placer.change_weights(connection.model.weights_version)
        core.begin(self._clock() + PROBATION if follows_loss else 0.0)
        self._placer.add(core.index)
        return None

    @staticmethod
    def fingerprint_error(core: Core, required: str) -> EngineDeadError:
        """The error for a core without the required fingerprint."""
        own = core.connection.base_fingerprint[:8]
        text = f"the core at {core.address} would give other tokens (fingerprint {own}, not {required[:8]})"
        return EngineDeadError(f"{text}: start it with the same model, dtype, number of ranks and kind of processor")

    def refuse(self, core: Core, error: PyllmError) -> None:
        """Close the connection of a core that cannot be used; it is not tried again."""
        if len(self._cores) > 1:
            logger.error("%s; it is not used", error)
        core.failure = error
        core.connection.close()

    def forget(self, core: Core) -> None:
        """Remove a core from placement: it was lost, or restarted without its requests."""
        if self._placer is not None:
            self._placer.remove(core.index)

    def take_report(self, core: Core, report: LoadReport) -> bool:
        """Take a core's report; returns whether a reservation begins."""
        self.placer.update_core(core.index, report)
        return core.take_report(report, self._clock())

    @property
    def placer(self) -> Placer:
        """The placer, once a core was ready."""
        assert self._placer is not None, "no core was ready yet"
        return self._placer

    def candidates(self, stream: Stream) -> list[Core]:
        """The cores that may take a request now; without any, the request waits."""
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
        if is_successor_awaited and len(usable) == 1:  # It gets all new requests, so it is not free for long.
            apart = [core for core in apart if core.is_set_apart(now)]
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
        """Discount a request that has left the core, or gets another id."""
        core.num_requests -= 1
        core.suspects.pop(stream.request, None)
        if not core.num_requests:
            core.emptied.set()
        self.placer.ended(stream.wire_id)

    def why_none_fits(self, stream: Stream) -> str:
        """The reason why none of the cores, all ready, can ever take a request; empty if one can or may."""
        cores = [core for core in self._cores.values() if not core.is_leaving and core.failure is None]
        if not cores or any(not core.connection.is_ready or self._fits(core, stream) for core in cores):
            return ""
        first, fingerprint = stream.journal.first, stream.fingerprint
        if any(first.adapter in core.awaited_adapters for core in cores):
            return ""
        if any(core.connection.fingerprint == fingerprint or not stream.journal.is_begun for core in cores):
            text = f"no other core has room for its {most_tokens(first)} tokens in {first.n} sequences"
            return f"{text}; start each with the same --max-model-len, and with enough KV cache and --max-num-seqs"
        advice = "start one with the same model, dtype, number of ranks and kind of processor"
        return f"no core has that one's fingerprint {fingerprint[:8]}; {advice}"

    def to_reserve(self, waiting: Iterable[Stream]) -> Iterable[Core]:
        """The cores to send `Reserve` to.

        These are the reserved cores with suspects of ours, and one for suspects that have waited too long: a core that
        any client has reserved already, or else the least busy one.
        """
        now = self._clock()
        asked = {core.index: core for core in self.all() if core.clear_suspects() and core.is_reserved(now)}
        for stream in waiting:
            if (core := self._core_for_suspect(stream, now)) is not None:
                asked[core.index] = core
        return asked.values()

    def add_suspect(self, core: Core, stream: Stream) -> bool:
        """Note that a suspect goes to a core; returns whether to reserve it, so that no client sends others there.

        No reservation is needed if the suspect runs alone beside other requests, since these need not move.
        """
        now = self._clock()
        is_first = not core.suspects and not core.is_reserved(now)
        core.suspects[stream.request] = stream
        return is_first and core.takes_suspects(now) and len(self._usable(stream)) > 1

    def must_move(self, stream: Stream, core: Core) -> bool:
        """Whether a request has to leave a core because the core is reserved and another one can take the request."""
        if stream.is_suspect:
            return False
        fit = self._for_unsuspected(self._usable(stream), self._clock())
        return bool(fit) and core not in fit

    def beat(self) -> None:
        """Advance time by half a second."""
        if self._placer is not None:
            self._placer.beat()

    def close(self) -> None:
        """Close the placer: no more requests will be placed."""
        if self._placer is not None:
            self._placer.close()

    def condition(self) -> Condition:
        """The condition of a ready core, or of the first core if none is ready."""
        conditions = [core.connection.condition() for core in self._cores.values() if core.failure is None]
        return next((each for each in conditions if each.ready), conditions[0] if conditions else Condition(False))

    def _core_for_suspect(self, stream: Stream, now: float) -> Core | None:
        """The core to reserve for a waiting request, if this is a suspect that has waited too long."""
        if not stream.is_suspect or stream.waits_since is None or now - stream.waits_since < EVACUATION_DELAY:
            return None
        usable = self._usable(stream)
        core = _first_reserved(usable, now)
        if core is None and now >= self._asked_until and (core := _least_busy(usable, now)) is not None:
            logger.warning("core %d is to be made free for requests that were lost with another one", core.index)
            self._asked_until = now + ANSWER_PATIENCE
        return core

    def _for_unsuspected(self, usable: Sequence[Core], now: float) -> list[Core]:
        """The cores where a request shares no step with suspects; if all are reserved, all but the first."""
        fit = [core for core in usable if now >= core.probation_until and not core.clear_suspects()]
        unreserved = [core for core in fit if not core.is_reserved(now)]
        first = _first_reserved(usable, now)
        return unreserved or [core for core in fit if core is not first]

    def _awaits_successor(self) -> bool:
        cores = [core for core in self._cores.values() if core.failure is None and not core.is_leaving]
        return any(0 < core.connection.outage < SUCCESSOR_PATIENCE for core in cores)

    def _usable(self, stream: Stream) -> list[Core]:
        """The open cores with room for a request; recovering, paused or silent ones only if there are no others.

        So are those with other weights than the cores that have changed theirs last.
        """
        fits = [
            core
            for core in self._cores.values()
            if core.is_open and core.connection.stage in ("ready", "recovering", "paused") and self._fits(core, stream)
        ]
        current = [core for core in fits if core.connection.model.weights_version == self.model.weights_version]
        fits = current or fits
        return [core for core in fits if core.connection.condition().ready] or fits

    def _fits(self, core: Core, stream: Stream) -> bool:
        if stream.journal.is_begun and core.connection.fingerprint != stream.fingerprint:
            return False
        first = stream.journal.first
        return has_room(core.connection.model, first) and (not first.adapter or self._may_have(core, first.adapter))

    def _may_have(self, core: Core, adapter: str) -> bool:
        """Whether a core has an adapter; where none has it, any may say so."""
        if adapter in core.awaited_adapters:
            return False
        return core.has_adapter(adapter) or not any(
            other.has_adapter(adapter) for other in self._cores.values() if other.is_open
        )


def _first_reserved(usable: Sequence[Core], now: float) -> Core | None:
    """The reserved core. If clients reserved several at the same time, all clients choose the same one."""
    return min((core for core in usable if core.is_reserved(now)), key=lambda core: core.epoch, default=None)


def _least_busy(usable: Sequence[Core], now: float) -> Core | None:
    """The core that can be freed soonest, mostly the same one for all clients; `_first_reserved` settles the rest.

    None if no other core could take its requests, or all rest.
    """
    able = [core for core in usable if not core.rests(now)] if len(usable) > 1 else []
    return min(able, key=lambda core: (core.num_unsuspected, core.epoch), default=None)
