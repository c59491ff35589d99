"""The core's side of KV transfers: sends the scheduler's loads and saves to the ranks as metadata of steps, and tells
the scheduler when they have ended.

Knows the scheduler, the executor and the connector's half; not how a connector moves blocks. Only `wait` waits for
ranks, while no step is in flight.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum, auto
from typing import Any, NamedTuple

import msgspec

from pyllm._rust import Scheduler, SchedulerError
from pyllm.core.executors.executor import Executor
from pyllm.core.kv.kv_lookups import Key, KVLookups
from pyllm.errors import EngineDeadError, WorkerDeadError
from pyllm.kv_transfer import (
    TRANSFER_SECONDS,
    BlockLoad,
    BlockSave,
    SchedulerConnector,
    SchedulerOutput,
    TierTotals,
)
from pyllm.wire.messages import TransferResults
from pyllm.wire.supervision_messages import MAX_ENDED

# Seconds between two looks at transfers while no step is in flight, and how they grow while nothing ends.
_FIRST_PAUSE, _LAST_PAUSE, _PAUSE_GROWTH = 0.001, 0.02, 1.25
# Seconds that ranks have at an orderly end to copy blocks for saving, and as many to write them.
_FINISH_SECONDS = 2.0

_RESULTS = msgspec.msgpack.Decoder(TransferResults | None)

logger = logging.getLogger(__name__)


class _State(Enum):
    """Whether the connector can be used."""

    READY = auto()
    STARTING = auto()  # The workers restart.
    FAILED = auto()  # The ranks could not make their halves; tried again at the next start.
    GIVEN_UP = auto()  # One of its halves raised; it is not used again in this process.
    ENDED = auto()


class _Load(NamedTuple):
    load: BlockLoad
    key: Key
    submitted: float


class KVTransfers:
    """KV transfers. Without a connector (None) every method returns at once.

    `fail` ends a request whose load has failed, if `kv_load_failure_policy` is `fail`.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        connector: SchedulerConnector | None,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        fail: Callable[[int, int, str], object],
    ) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._connector = connector
        self._lookups = None if connector is None else KVLookups(scheduler, connector, clock)
        self._state = _State.ENDED if connector is None else _State.READY
        self._num_ranks = 1 if connector is None else connector.context.num_ranks
        self._clock = clock
        self._sleep = sleep
        self._fail = fail
        self._loads: dict[int, _Load] = {}
        self._saves: dict[int, float] = {}  # the time when each was submitted, by id
        self._lost: set[Key] = set()  # requests whose loads were under way when the last ranks ended
        self._ranks_ended: dict[tuple[str, int], int] = {}
        self._error_blocks: set[int] = set()
        self._calls: set[asyncio.Task[None]] = set()
        self._pause = _FIRST_PAUSE
        self._num_loaded_tokens = self._num_failures = 0
        self._moved = dict.fromkeys(("loaded_bytes", "saved_bytes", "num_unsaved_blocks"), 0)
        self._load_seconds = 0.0
        self._tiers = TierTotals()

    @property
    def is_busy(self) -> bool:
        """Whether a load, save or look-up is under way, which may end without a step."""
        return bool(self._loads or self._saves) or (self._lookups is not None and self._lookups.num_held > 0)

    async def connect(self) -> None:
        """Make the ranks' halves, once their KV caches are allocated. If that fails, the core goes on without them.

        Raises:
            WorkerDeadError: a rank has died.
        """
        if self._connector is None or self._lookups is None or self._state is _State.GIVEN_UP:
            return
        context = self._connector.context
        try:
            await self._executor.collective("register_kv_caches", *context.of_worker)
        except WorkerDeadError:
            raise
        except EngineDeadError as error:
            logger.error("KV blocks are neither loaded nor saved until the workers start again: %s", error)
            self._state = _State.FAILED
            self._num_failures += 1
            self._lookups.release_all()
        else:
            self._state = _State.READY

    def add(self, client: int, request: int) -> None:
        """Look a new request up."""
        if self._lookups is not None and self._may_load():
            with self._guarded():
                self._lookups.add((client, request))

    def recovered(self) -> None:
        """Look up all requests for new ranks.

        Requests that were being loaded are computed: if a load ended the ranks, it must not end the next ones.
        """
        if self._lookups is not None and self._may_load():
            with self._guarded():
                self._lookups.add_all(but=self._lost)

    def advance(self) -> None:
        """Check the held requests; call it before each plan."""
        if self._lookups is not None and self._lookups.num_held:
            with self._guarded():
                self._lookups.advance()

    def take(self, *, with_step: bool) -> bytes:
        """The connector's metadata for a step that was just planned, or for the ranks between steps."""
        if self._connector is None:
            return b""
        if self._state in {_State.FAILED, _State.GIVEN_UP}:
            self._refuse()
            return b""
        with self._guarded():
            loads = [self._begun(load) for load in self._scheduler.take_loads()]
            saves = [each for save in self._scheduler.take_saves() for each in self._begun_saves(BlockSave(*save))]
            self._saves.update((save.id, self._clock()) for save in saves)
            if with_step or loads or saves:
                metadata = self._connector.build_connector_meta(SchedulerOutput(loads, saves))
                if not isinstance(metadata, bytes):
                    raise TypeError(f"build_connector_meta must give bytes, not {type(metadata).__name__}")
                return metadata
        return b""

    def flush(self) -> None:
        """Send loads and saves that have come without a step, and ask the ranks whose answers come with no step."""
        if self._connector is None or self._executor.death is not None:
            return
        metadata = self.take(with_step=False)
        self._end_overdue()
        is_unanswered = self._num_ranks > 1 and bool(self._loads or self._saves)
        if metadata or (is_unanswered and not self._calls):
            self._call(metadata)

    async def wait(self) -> None:
        """Ask the ranks for their results, and let some time pass. No step may be in flight."""
        if (self._loads or self._saves) and not self._calls:
            self._call(b"")
        if self._calls:
            await asyncio.wait(self._calls)
        if self.is_busy:
            await self._sleep(self._pause)
            self._pause = min(self._pause * _PAUSE_GROWTH, _LAST_PAUSE)

    def request_figures(self) -> None:
        """Ask the ranks for figures that are newer than the last step. No step may be in flight."""
        is_ready = self._state is _State.READY and self._executor.death is None
        if is_ready and not self._calls and not self.is_busy:
            self._call(b"")

    def receive(self, results: TransferResults | None) -> bool:
        """Take a rank's results. False: the step of these results may have read blocks that were not loaded."""
        if results is None or self._connector is None:
            return True
        if results.failure:
            self._give_up(f"the KV connector failed in a rank: {results.failure}")
            return False
        self._pause = _FIRST_PAUSE
        self._error_blocks.update(results.error_blocks)
        if (stats := results.stats) is not None:
            self._moved["loaded_bytes"] += stats.loaded_bytes
            self._moved["saved_bytes"] += stats.saved_bytes
            self._moved["num_unsaved_blocks"] += stats.num_unsaved_blocks
            if math.isfinite(stats.load_seconds):
                self._load_seconds += stats.load_seconds
            self._tiers.add(stats.tiers)
        for load in results.loads:
            if self._has_ended("load", load):
                self._end_load(load)
        for save in results.saves:
            if self._has_ended("save", save) and save in self._saves:
                del self._saves[save]
                self._scheduler.finish_save(save)
        with self._guarded():
            self._connector.update_connector_output(results)
        return True

    def ended(self, reports: list[dict[str, Any]]) -> None:
        """Forget requests that have ended. `reports` are those of `Scheduler.take_ended`."""
        if self._lookups is None or self._state is _State.GIVEN_UP:
            return
        with self._guarded():
            for report in reports:
                self._lookups.end((report["client"], report["request"]))
            if len(reports) >= MAX_ENDED:  # `take_ended` returns only the last ones.
                self._lookups.end_missing()

    def lose(self) -> None:
        """End all loads and saves under way, as the ranks are gone."""
        if self._state in {_State.READY, _State.FAILED}:
            self._state = _State.STARTING
        for call in self._calls:
            call.cancel()
        self._lost = {load.key for load in self._loads.values()}
        for pending in (self._calls, self._loads, self._saves, self._ranks_ended, self._error_blocks):
            pending.clear()

    async def finish(self) -> None:
        """Let the ranks copy and write the blocks to save, for a short while. No step may follow."""
        if self._state is not _State.READY or self._executor.death is not None:
            return
        with suppress(TimeoutError, EngineDeadError):
            async with asyncio.timeout(_FINISH_SECONDS):
                self.flush()
                while self._saves and self._executor.death is None:
                    await self.wait()
                    self.flush()
        self._state = _State.ENDED
        with suppress(TimeoutError, EngineDeadError):
            async with asyncio.timeout(_FINISH_SECONDS):
                await self._executor.collective("finish_transfers")

    def close(self) -> None:
        """Shut the connector's half in the core down."""
        if self._connector is not None:
            try:
                self._connector.shutdown()
            except Exception:
                logger.exception("the KV connector failed to shut down")
            self._connector, self._lookups, self._state = None, None, _State.ENDED

    def stats(self) -> dict[str, int]:
        """Counters, speeds, and the figures of the stores' tiers; none without a connector."""
        if self._connector is None or self._lookups is None:
            return {}
        with self._guarded():
            self._tiers.add(self._connector.get_tier_stats())
        seconds = self._load_seconds
        return {
            **self._lookups.stats(),
            "num_kv_loads": len(self._loads),
            "num_kv_loaded_tokens": self._num_loaded_tokens,
            "num_kv_connector_failures": self._num_failures,
            "kv_loaded_bytes": self._moved["loaded_bytes"],
            "kv_saved_bytes": self._moved["saved_bytes"],
            "num_kv_unsaved_blocks": self._moved["num_unsaved_blocks"],
            "kv_load_bytes_per_second": round(self._moved["loaded_bytes"] / seconds) if seconds else 0,
            **self._tiers.figures(),
        }

    def _may_load(self) -> bool:
        is_usable = self._state in {_State.READY, _State.STARTING}
        return is_usable and self._connector is not None and self._connector.config.loads

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Go on without the connector if its half in the core raises anything.

        The ranks restart, because it is unknown which blocks they still move.
        """
        try:
            yield
        except Exception as error:
            if self._state is _State.GIVEN_UP:
                return
            logger.exception("the KV connector failed in the core")
            self._give_up(f"the KV connector failed in the core: {type(error).__name__}: {error}")

    def _give_up(self, reason: str) -> None:
        if self._state is _State.GIVEN_UP:
            return
        logger.error("%s; nothing is loaded or saved until the core starts again", reason)
        self._num_failures += 1
        self._state = _State.GIVEN_UP
        if self._lookups is not None:
            self._lookups.release_all()
        self._executor.kill("killed")

    def _refuse(self) -> None:
        """End all new loads and saves as failed, as there is no connector for them."""
        for load in self._scheduler.take_loads():
            self._scheduler.finish_load(load["id"], 0)
        for save in self._scheduler.take_saves():
            self._scheduler.finish_save(BlockSave(*save).id)

    def _end_overdue(self) -> None:
        """Kill ranks in which a load or save never ends: they may touch its blocks as long as they live."""
        submitted = [load.submitted for load in self._loads.values()] + list(self._saves.values())
        if submitted and (seconds := self._clock() - min(submitted)) >= TRANSFER_SECONDS:
            logger.error("a KV connector has not ended a load or save in %.0f s, so all ranks are restarted", seconds)
            self._executor.kill("killed")

    def _begun(self, taken: dict[str, Any]) -> BlockLoad:
        assert self._connector is not None
        assert self._lookups is not None
        key = taken["client"], taken["request"]
        request = self._lookups.offered(key)
        groups = [memoryview(group).cast("i").tolist() for group in taken["blocks"]]
        num_groups = len(self._connector.context.windows)
        states = [block for group in groups[num_groups:] for state in group for block in self._blocks_of_state(state)]
        blocks = (*map(tuple, groups[:num_groups]), *((block,) for block in states))
        load = BlockLoad(taken["id"], request, taken["first_token"], taken["num_tokens"], blocks, taken["step"])
        self._loads[load.id] = _Load(load, key, self._clock())
        self._connector.update_state_after_alloc(request, blocks, load.num_tokens)
        return load

    def _begun_saves(self, save: BlockSave) -> list[BlockSave]:
        """A save; that of a state as those of its blocks, which end together."""
        assert self._connector is not None
        if save.group < len(self._connector.context.windows):
            return [save]
        return [
            msgspec.structs.replace(save, group=save.group + place, block=block)
            for place, block in enumerate(self._blocks_of_state(save.block))
        ]

    def _blocks_of_state(self, number: int) -> range:
        """The blocks of a state. The scheduler numbers states after all blocks, each as one."""
        assert self._connector is not None
        num_blocks, size = self._scheduler.stats()["num_blocks"], self._connector.context.state_blocks
        first = num_blocks + (number - num_blocks) * size
        return range(first, first + size)

    def _has_ended(self, kind: str, number: int) -> bool:
        """Whether every rank has now ended this load or save."""
        num_ended = self._ranks_ended.pop((kind, number), 0) + 1
        if num_ended < self._num_ranks:
            self._ranks_ended[kind, number] = num_ended
            return False
        return True

    def _end_load(self, number: int) -> None:
        begun = self._loads.pop(number, None)
        if begun is None:
            return
        assert self._connector is not None
        assert self._lookups is not None
        load, size = begun.load, self._connector.context.block_size
        num_blocks = load.num_tokens // size
        num_right = num_blocks
        for blocks in load.blocks:
            first = num_blocks - len(blocks)
            failed = (first + place for place, block in enumerate(blocks) if block in self._error_blocks)
            num_right = min(num_right, next(failed, num_blocks))
            self._error_blocks.difference_update(blocks)
        missing = load.num_tokens - num_right * size
        self._lookups.measure(load.num_tokens, missing, self._clock() - begun.submitted)
        self._num_loaded_tokens += num_right * size
        if load.step is not None and not missing:
            return  # The commit of the step reports it, and counts the loaded tokens as found.
        try:
            self._scheduler.finish_load(load.id, num_right * size)
        except SchedulerError:
            return  # The step that read it is committed.
        if missing and self._connector.config.kv_load_failure_policy == "fail":
            self._fail(*begun.key, f"{missing} of {load.num_tokens} tokens to load from outside did not come")

    def _call(self, metadata: bytes) -> None:
        call = asyncio.ensure_future(self._transfer(metadata))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _transfer(self, metadata: bytes) -> None:
        try:
            answers = [_RESULTS.decode(answer) for answer in await self._executor.collective("transfer", metadata)]
        except WorkerDeadError:
            return  # The executor tells the loop.
        except (EngineDeadError, msgspec.DecodeError) as error:
            # Loads and saves under way will never end on all ranks.
            logger.error("KV blocks could not be moved, so all ranks are restarted: %s", error)
            self._executor.kill("crashed")
            return
        for answer in answers:
            self.receive(answer)
