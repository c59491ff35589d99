"""KV blocks from and for outside, in the core: the scheduler's loads and saves become metadata of steps, and what ranks
have ended becomes inputs of the scheduler.

Knows the scheduler, the executor and the connector's half; not what a connector does. Nothing here waits for outside
but `wait`, while no step is in flight.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from pyllm._rust import Scheduler, SchedulerError
from pyllm.config.kv_transfer_settings import KVTransferConfig
from pyllm.core.executors.executor import Executor
from pyllm.errors import EngineDeadError, WorkerDeadError
from pyllm.kv_transfer import (
    BlockLoad,
    BlockSave,
    LoadSpeed,
    SchedulerConnector,
    SchedulerOutput,
    TierTotals,
    TransferRequest,
)
from pyllm.wire.messages import TransferResults
from pyllm.wire.supervision_messages import MAX_ENDED

HOLDER = "kv_lookup"
# Seconds between two looks at transfers while no step is in flight, and how they grow while nothing ends.
_FIRST_PAUSE, _LAST_PAUSE, _PAUSE_GROWTH = 0.001, 0.02, 1.25
# Seconds that ranks have at an orderly end to copy what is to be saved, and as many to write it.
_FINISH_SECONDS = 2.0
# For a connector that keeps no time limits of its own, in seconds. A request is held for an answer no
# longer, and ranks that never end a load or save, whose blocks nobody else may have, are started anew.
_HOLD_SECONDS, _TRANSFER_SECONDS = 30.0, 120.0
_LONG_LOAD = 256  # tokens, from which on a load counts as long

Key = tuple[int, int]  # client and request
_RESULTS = msgspec.msgpack.Decoder(TransferResults | None)

logger = logging.getLogger(__name__)


class _Held(NamedTuple):
    request: TransferRequest
    num_computed: int  # tokens
    since: float


class _Load(NamedTuple):
    load: BlockLoad
    key: Key
    submitted: float


class KVTransfers:
    """`connector` is None where there is none: then every method returns at once.

    `namespace` has the hexadecimal digits that the ranks' halves get. `fail` ends a request whose load has failed,
    where `kv_load_failure_policy` says so.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        connector: SchedulerConnector | None,
        *,
        config: KVTransferConfig | None,
        namespace: str,
        num_ranks: int,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        fail: Callable[[int, int, str], object],
    ) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._connector = connector
        self._is_connected = connector is not None
        self._config = config
        self._namespace = namespace
        self._num_ranks = num_ranks
        self._clock = clock
        self._sleep = sleep
        self._fail = fail
        self._looked_up: dict[Key, _Held] = {}
        self._offered: dict[Key, TransferRequest] = {}
        self._loads: dict[int, _Load] = {}
        self._saves: dict[int, float] = {}  # and when each was submitted
        self._ranks_ended: dict[tuple[str, int], int] = {}
        self._error_blocks: set[int] = set()
        self._calls: set[asyncio.Task[None]] = set()
        self._pause = _FIRST_PAUSE
        # Of short loads, whose time is mostly that of asking, and of long ones.
        self._load_speeds = (LoadSpeed(), LoadSpeed())
        self._counts = dict.fromkeys(
            (
                "num_kv_lookups",
                "num_kv_matched_tokens",
                "num_kv_loaded_tokens",
                "num_kv_skipped_hits",
                "num_kv_connector_failures",
            ),
            0,
        )
        self._moved = dict.fromkeys(("loaded_bytes", "saved_bytes", "num_dropped_saves"), 0)
        self._load_seconds = 0.0
        self._tiers = TierTotals()
        self._ranks_answer = connector is not None  # not while they start anew, nor at the end

    @property
    def is_busy(self) -> bool:
        """Whether something is under way that no step brings to its end."""
        return bool(self._looked_up or self._loads or self._saves)

    async def connect(self) -> None:
        """Make the ranks' halves, once their KV caches are there. If they cannot, the core goes on without for now.

        Raises:
            WorkerDeadError: a rank has died.
        """
        if self._connector is None:
            return
        try:
            await self._executor.collective("register_kv_caches", self._namespace)
        except WorkerDeadError:
            raise
        except EngineDeadError as error:
            logger.error("KV blocks are neither loaded nor saved until the workers start again: %s", error)
            self._is_connected = False
            self._counts["num_kv_connector_failures"] += 1
            for key in list(self._looked_up):
                self._let_go(key)
        else:
            self._is_connected = self._ranks_answer = True

    def add(self, client: int, request: int) -> None:
        """A request has come. What is outside of it is offered to the scheduler, or looked for while it is held."""
        if not self._is_connected or self._config is None or not self._config.loads:
            return
        num_computed, hashes = self._scheduler.known_prefix(client, request)
        if not hashes:
            return
        known = TransferRequest(f"{client}/{request}", tuple(hashes))
        self._counts["num_kv_lookups"] += 1
        if not self._look_up((client, request), known, num_computed):
            self._scheduler.hold(client, request, HOLDER)
            self._looked_up[client, request] = _Held(known, num_computed, self._clock())

    def advance(self) -> None:
        """Look at the requests that are held; before each plan."""
        for key, held in list(self._looked_up.items()):
            if self._look_up(key, held.request, held.num_computed):
                self._let_go(key)
            elif self._clock() - held.since >= _HOLD_SECONDS:
                logger.error("a KV connector did not say in %.0f s what it has of request %d/%d", _HOLD_SECONDS, *key)
                self._let_go(key)

    def take(self, *, with_step: bool) -> bytes:
        """What the ranks are told with a step that was just planned, or without one."""
        if self._connector is None:
            return b""
        if not self._is_connected:
            self._refuse()
            return b""
        loads = [self._begun(load) for load in self._scheduler.take_loads()]
        saves = [BlockSave(*save) for save in self._scheduler.take_saves()]
        self._saves.update((save.id, self._clock()) for save in saves)
        if not with_step and not loads and not saves:
            return b""
        return self._connector.build_connector_meta(SchedulerOutput(loads, saves))

    def flush(self) -> None:
        """Tell the ranks what is new though no step was planned, and ask those that answer no step."""
        if self._connector is None or self._executor.death is not None:
            return
        metadata = self.take(with_step=False)
        self._end_overdue()
        is_unanswered = self._num_ranks > 1 and bool(self._loads or self._saves)
        if metadata or (is_unanswered and not self._calls):
            self._call(metadata)

    async def wait(self) -> None:
        """Let some time pass, as no step is in flight, and hear what the ranks have ended meanwhile."""
        if (self._loads or self._saves) and not self._calls:
            self._call(b"")
        if self._calls:
            await asyncio.wait(self._calls)
        if self.is_busy:
            await self._sleep(self._pause)
            self._pause = min(self._pause * _PAUSE_GROWTH, _LAST_PAUSE)

    def ask(self) -> None:
        """Have the ranks tell what they have moved since the last step. No step may be in flight."""
        if self._ranks_answer and not self._calls and not self.is_busy and self._executor.death is None:
            self._call(b"")

    def receive(self, results: TransferResults | None) -> None:
        """What a rank has ended."""
        if results is None or self._connector is None:
            return
        self._pause = _FIRST_PAUSE
        self._error_blocks.update(results.error_blocks)
        if (stats := results.stats) is not None:
            self._moved["loaded_bytes"] += stats.loaded_bytes
            self._moved["saved_bytes"] += stats.saved_bytes
            self._moved["num_dropped_saves"] += stats.num_dropped_saves
            self._load_seconds += stats.load_seconds
            self._tiers.add(stats.tiers)
        for load in results.loads:
            if self._has_ended("load", load):
                self._end_load(load)
        for save in results.saves:
            if self._has_ended("save", save) and save in self._saves:
                del self._saves[save]
                self._scheduler.finish_save(save)
        self._connector.update_connector_output(results)

    def ended(self, reports: list[dict[str, Any]]) -> None:
        """Requests have ended, as `Scheduler.take_ended` tells of them."""
        if self._connector is None:
            return
        for report in reports:
            self._end_request((report["client"], report["request"]))
        if len(reports) >= MAX_ENDED:  # Of more than these it tells of the last ones.
            for key in [*self._offered, *self._looked_up]:
                if not self._is_live(key):
                    self._end_request(key)

    def lose(self) -> None:
        """The ranks are gone, and with them all that was under way."""
        self._ranks_answer = False
        for call in self._calls:
            call.cancel()
        for pending in (self._calls, self._loads, self._saves, self._ranks_ended, self._error_blocks):
            pending.clear()

    async def finish(self) -> None:
        """Have the ranks copy and write what is to be saved, for a short while: no step follows."""
        if not self._is_connected or self._executor.death is not None:
            return
        self._ranks_answer = False
        with suppress(TimeoutError, EngineDeadError):
            async with asyncio.timeout(_FINISH_SECONDS):
                self.flush()
                while self._saves and self._executor.death is None:
                    await self.wait()
                    self.flush()
        with suppress(TimeoutError, EngineDeadError):
            async with asyncio.timeout(_FINISH_SECONDS):
                await self._executor.collective("finish_transfers")

    def close(self) -> None:
        """Give up what the connector holds outside."""
        if self._connector is not None:
            self._connector.shutdown()
            self._connector, self._is_connected, self._ranks_answer = None, False, False

    def stats(self) -> dict[str, int]:
        """Counters, and the speeds by which a load is chosen: tokens in a second, 0 before any was measured."""
        if self._connector is None:
            return {}
        self._tiers.add(self._connector.get_tier_stats())
        prefill = self._scheduler.prefill_seconds(1)
        seconds = self._load_seconds
        return {
            **self._counts,
            "num_kv_loads": len(self._loads),
            "kv_loaded_bytes": self._moved["loaded_bytes"],
            "kv_saved_bytes": self._moved["saved_bytes"],
            "num_kv_unsaved_blocks": self._moved["num_dropped_saves"],
            "kv_load_bytes_per_second": round(self._moved["loaded_bytes"] / seconds) if seconds else 0,
            "kv_load_tokens_per_second": max(speed.tokens_per_second for speed in self._load_speeds),
            "prefill_tokens_per_second": round(1 / prefill) if prefill else 0,
            **self._tiers.figures(),
        }

    def _load_speed(self, num_tokens: int) -> LoadSpeed:
        return self._load_speeds[num_tokens >= _LONG_LOAD]

    def _look_up(self, key: Key, request: TransferRequest, num_computed: int) -> bool:
        """Ask the connector for what it has of a request; False: it does not know yet."""
        assert self._connector is not None
        num_tokens, is_asynchronous = self._connector.get_num_new_matched_tokens(request, num_computed)
        if num_tokens is None:
            return False
        if num_tokens <= 0:
            return True
        self._counts["num_kv_matched_tokens"] += num_tokens
        if not self._load_speed(num_tokens).is_worth(num_tokens, self._scheduler.prefill_seconds(num_tokens)):
            self._counts["num_kv_skipped_hits"] += 1
            return True
        try:
            _, hashes = self._scheduler.known_prefix(*key)
            if tuple(hashes[:1]) != request.block_hashes[:1]:
                return True  # With other weights its blocks have other names.
            # One rank alone hears in time what a load within a step has failed to bring.
            is_asynchronous = is_asynchronous or self._num_ranks > 1
            self._scheduler.offer_load(*key, num_computed + num_tokens, asynchronous=is_asynchronous)
        except SchedulerError:
            return True  # It has ended, or runs already.
        self._offered[key] = request
        return True

    def _let_go(self, key: Key) -> None:
        """Nothing more is looked for, so the request may run."""
        del self._looked_up[key]
        with suppress(SchedulerError):  # It has ended.
            self._scheduler.release(*key, HOLDER)

    def _is_live(self, key: Key) -> bool:
        try:
            self._scheduler.known_prefix(*key)
        except SchedulerError:
            return False
        return True

    def _end_request(self, key: Key) -> None:
        assert self._connector is not None
        held, offered = self._looked_up.pop(key, None), self._offered.pop(key, None)
        request = held.request if held else offered or TransferRequest(f"{key[0]}/{key[1]}", ())
        self._connector.request_finished(request, ())

    def _refuse(self) -> None:
        """Have computed what was offered before the connector failed, and save nothing."""
        for load in self._scheduler.take_loads():
            self._scheduler.finish_load(load["id"], 0)
        for save in self._scheduler.take_saves():
            self._scheduler.finish_save(BlockSave(*save).id)

    def _end_overdue(self) -> None:
        """End ranks in which a load or save has not come to an end: they may touch its blocks as long as they live."""
        submitted = [load.submitted for load in self._loads.values()] + list(self._saves.values())
        if submitted and (seconds := self._clock() - min(submitted)) >= _TRANSFER_SECONDS:
            logger.error(
                "a KV connector has not ended a load or save in %.0f s, so all ranks are started anew", seconds
            )
            self._executor.kill("killed")

    def _begun(self, taken: dict[str, Any]) -> BlockLoad:
        assert self._connector is not None
        key = taken["client"], taken["request"]
        request = self._offered[key]
        blocks = tuple(tuple(memoryview(group).cast("i").tolist()) for group in taken["blocks"])
        load = BlockLoad(taken["id"], request, taken["first_token"], taken["num_tokens"], blocks, taken["step"])
        self._loads[load.id] = _Load(load, key, self._clock())
        self._connector.update_state_after_alloc(request, blocks, load.num_tokens)
        return load

    def _has_ended(self, kind: str, number: int) -> bool:
        """Whether every rank has told of its end."""
        num_ended = self._ranks_ended.pop((kind, number), 0) + 1
        if num_ended < self._num_ranks:
            self._ranks_ended[kind, number] = num_ended
            return False
        return True

    def _end_load(self, number: int) -> None:
        begun = self._loads.pop(number, None)
        if begun is None:
            return
        load, size = begun.load, self._block_size(begun.load)
        num_blocks = load.num_tokens // size
        num_right = num_blocks
        for blocks in load.blocks:
            first = num_blocks - len(blocks)
            failed = (first + place for place, block in enumerate(blocks) if block in self._error_blocks)
            num_right = min(num_right, next(failed, num_blocks))
            self._error_blocks.difference_update(blocks)
        missing, seconds = load.num_tokens - num_right * size, self._clock() - begun.submitted
        if missing:  # It is computed after that.
            seconds += self._scheduler.prefill_seconds(missing) or 0.0
        self._load_speed(load.num_tokens).measure(load.num_tokens, seconds)
        self._counts["num_kv_loaded_tokens"] += num_right * size
        try:
            self._scheduler.finish_load(load.id, num_right * size)
        except SchedulerError:
            return  # The step that read it is committed.
        if missing and self._config is not None and self._config.kv_load_failure_policy == "fail":
            self._fail(*begun.key, f"{missing} of {load.num_tokens} tokens to load from outside did not come")

    def _block_size(self, load: BlockLoad) -> int:
        assert self._connector is not None
        return self._connector.context.block_size

    def _call(self, metadata: bytes) -> None:
        call = asyncio.ensure_future(self._transfer(metadata))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _transfer(self, metadata: bytes) -> None:
        try:
            answers = await self._executor.collective("transfer", metadata)
        except WorkerDeadError:
            return  # The loop hears it from the executor.
        except EngineDeadError as error:
            # What was under way will not come to its end on all ranks.
            logger.error("KV blocks could not be moved, so all ranks are started anew: %s", error)
            self._executor.kill("crashed")
            return
        for answer in answers:
            self.receive(_RESULTS.decode(answer))
