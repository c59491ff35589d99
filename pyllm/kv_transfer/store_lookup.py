"""The store connector's half in the core: looks requests up in the store, on a thread of its own.

Knows hashes and block numbers. Moves nothing: `store_transfer.py` does, in each rank.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor

import msgspec

from pyllm.config.kv_transfer_settings import KVTransferConfig
from pyllm.kv_transfer.scheduler_connector import (
    BlockLoad,
    BlockSave,
    ConnectorContext,
    SchedulerConnector,
    SchedulerOutput,
    TransferRequest,
)
from pyllm.kv_transfer.store_settings import block_key, open_store, read_store_settings
from pyllm.kv_transfer.stores.store import KVStore
from pyllm.kv_transfer.tier_figures import TierReport, TierReporter

# Limit of calls of the store that have not returned, including abandoned ones. Further requests are computed.
MAX_LOOKUPS = 1024

logger = logging.getLogger(__name__)


class StoreLoad(msgspec.Struct, frozen=True, array_like=True):
    """A load for a rank: for each block its hash, its group and its number, the first tokens first."""

    id: int
    hashes: tuple[bytes, ...]
    groups: tuple[int, ...]
    blocks: tuple[int, ...]
    is_awaited: bool  # whether the step of the same message reads its blocks


class StoreMetadata(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """The metadata for the workers' halves."""

    loads: tuple[StoreLoad, ...] = ()
    saves: tuple[BlockSave, ...] = ()


class StoreLookup(SchedulerConnector):
    """Looks a request's blocks up on `threads`, one by default. It waits `lookup_timeout` at most."""

    def __init__(
        self,
        config: KVTransferConfig,
        context: ConnectorContext,
        store: KVStore | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        threads: Executor | None = None,
    ) -> None:
        super().__init__(config, context)
        self._settings = read_store_settings(config)
        self._store = open_store(self._settings, context.cache) if store is None else store
        self._clock = clock
        self._threads = threads or ThreadPoolExecutor(1, thread_name_prefix="kv-lookup")
        self._free_calls = threading.Semaphore(MAX_LOOKUPS)
        self._lookups: dict[str, tuple[float, Future[int]]] = {}
        self._tiers = TierReporter(self._store, clock)
        self._encoder = msgspec.msgpack.Encoder()

    def get_num_new_matched_tokens(self, request: TransferRequest, num_computed_tokens: int) -> tuple[int | None, bool]:
        num_computed = num_computed_tokens // self.context.block_size
        if not self.config.loads or num_computed >= len(request.block_hashes):
            return 0, True
        if request.request_id not in self._lookups:
            if not self._free_calls.acquire(blocking=False):
                return 0, True
            lookup: Future[int] = Future()
            self._threads.submit(self._answer, lookup, request.block_hashes, num_computed)
            self._lookups[request.request_id] = (self._clock() + self._settings.lookup_timeout, lookup)
        deadline, lookup = self._lookups[request.request_id]
        if not lookup.done() and self._clock() < deadline:
            return None, True
        del self._lookups[request.request_id]
        num_found = _found(lookup)
        return max(0, num_found - num_computed) * self.context.block_size, True

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> bytes:
        loads = tuple(self._load(load) for load in scheduler_output.loads)
        saves = tuple(scheduler_output.saves)
        return self._encoder.encode(StoreMetadata(loads, saves)) if loads or saves else b""

    def request_finished(self, request: TransferRequest, block_ids: Sequence[Sequence[int]]) -> tuple[bool, None]:
        _, lookup = self._lookups.pop(request.request_id, (0.0, None))
        if lookup is not None:
            lookup.cancel()
        return False, None

    def get_tier_stats(self) -> TierReport:
        return self._tiers.take()

    def shutdown(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._tiers.close()
        self._store.close()

    def _load(self, load: BlockLoad) -> StoreLoad:
        size = self.context.block_size
        end = (load.first_token + load.num_tokens) // size
        # In order of index: if a load ends early, the blocks before its end can be used.
        places = sorted(
            (index, group, block)
            for group, blocks in enumerate(load.blocks)
            for index, block in enumerate(blocks, end - len(blocks))
        )
        return StoreLoad(
            load.id,
            tuple(load.request.block_hashes[index] for index, _, _ in places),
            tuple(group for _, group, _ in places),
            tuple(block for _, _, block in places),
            load.step is not None,
        )

    def _answer(self, lookup: Future[int], hashes: Sequence[bytes], num_computed: int) -> None:
        """Look a request up, unless the look-up was cancelled.

        `lookup` is not the pool's own future. A cancelled one stays in the pool's queue, and `_free_calls` must count
        it until it leaves.
        """
        try:
            if lookup.set_running_or_notify_cancel():
                lookup.set_result(self._look_up(hashes, num_computed))
        except Exception as error:  # noqa: BLE001 - a store of another package may raise any error
            lookup.set_exception(error)
        finally:
            self._free_calls.release()

    def _look_up(self, hashes: Sequence[bytes], num_computed: int) -> int:
        """The length in blocks of the longest prefix for which all that the next token reads is known."""
        windows, ranks = self.context.windows, range(self.context.num_ranks)
        # Of a state the first block stands for all.
        num_groups = len(windows) + bool(self.context.state_blocks)
        places = [(index, group) for index in range(num_computed, len(hashes)) for group in range(num_groups)]
        namespace = self.context.namespace
        keys = [block_key(namespace, hashes[index], group, rank) for index, group in places for rank in ranks]
        found = self._store.lookup(keys)
        num_ranks = len(ranks)
        known = {place: all(found[at * num_ranks : (at + 1) * num_ranks]) for at, place in enumerate(places)}
        length = len(hashes)
        for group in (group for group, window in enumerate(windows) if window is None):
            missing = (index for index in range(num_computed, length) if not known[index, group])
            length = next(missing, length)
        while length > num_computed:
            missing_at = [
                index
                for group, window in enumerate(windows)
                if window is not None
                for index in range(max(num_computed, self._first_read(length, window)), length)
                if not known[index, group]
            ]
            if self.context.state_blocks and not known[length - 1, len(windows)]:
                missing_at.append(length - 1)
            if not missing_at:
                return length
            length = max(missing_at)
        return length

    def _first_read(self, length: int, window: int) -> int:
        """The first block that the token after `length` blocks reads."""
        return max(0, length * self.context.block_size + 1 - window) // self.context.block_size


def _found(lookup: Future[int]) -> int:
    """The number of blocks that a look-up has found; 0 if it failed, or is not done yet."""
    if not lookup.done():
        lookup.cancel()
        return 0
    if (error := lookup.exception()) is not None:
        logger.error("the store of KV blocks failed in a look-up: %s", error)
        return 0
    return lookup.result()
