"""The store connector's half in a rank: copies blocks to and from the store, on threads of its own.

Only whole blocks that arrive in time are written to the cache. All others are reported as errors, and computed. Knows
neither requests nor steps.
"""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import msgspec

from pyllm.config.kv_transfer_settings import KVTransferConfig
from pyllm.kv_transfer.scheduler_connector import BlockSave, ConnectorContext
from pyllm.kv_transfer.store_lookup import StoreLoad, StoreMetadata
from pyllm.kv_transfer.store_settings import block_key, open_store, read_store_settings
from pyllm.kv_transfer.stores.store import KVStore, Retention
from pyllm.kv_transfer.tier_figures import TierReporter
from pyllm.kv_transfer.worker_connector import KVBlocks, WorkerConnector
from pyllm.wire.messages import TransferStats

# Bytes of a load per read: one thread copies a chunk into the cache while others read theirs.
CHUNK_BYTES = 8 << 20
# Limit of a rank's loads that have not returned, including abandoned ones. The tokens of further loads are computed.
MAX_LOADS = 256
# Least seconds between two warnings about loads that took too long.
WARNING_SECONDS = 60.0
# Limit of a rank's blocks that wait to be written.
MAX_STAGED = 4096

logger = logging.getLogger(__name__)


class StoreTransfer(WorkerConnector):
    """`readers`, by default `io_threads` threads, read loads in chunks.

    One more thread copies saves out of the cache, and another one writes them.
    """

    def __init__(
        self,
        config: KVTransferConfig,
        context: ConnectorContext,
        store: KVStore | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        readers: Executor | None = None,
    ) -> None:
        super().__init__(config, context)
        self._settings = settings = read_store_settings(config)
        self._store = open_store(settings, context.cache, promotes=config.saves) if store is None else store
        self._clock = clock
        self._decoder = msgspec.msgpack.Decoder(StoreMetadata)
        self._readers = readers or ThreadPoolExecutor(settings.io_threads, thread_name_prefix="kv-load")
        self._free_reads = threading.Semaphore(MAX_LOADS)
        self._copier = ThreadPoolExecutor(1, thread_name_prefix="kv-copy")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="kv-save")
        self._tiers = TierReporter(self._store, clock)
        self._metadata = StoreMetadata()
        self._next_warning = float("-inf")
        self._loads: list[_Load] = []
        self._lock = threading.Lock()  # guards the fields below
        self._staging: list[memoryview] = []
        self._saved: set[int] = set()
        self._moved: dict[str, Any] = defaultdict(int)  # fields of `TransferStats`
        self._errors: set[int] = set()

    def register_kv_caches(self, kv_caches: KVBlocks) -> None:
        self._blocks = kv_caches
        size = kv_caches.block_bytes
        num_staged = max(1, min(self._settings.staging_bytes // size, MAX_STAGED))
        memory = memoryview(bytearray(num_staged * size)) if self.config.saves else memoryview(b"")
        self._staging = [memory[at : at + size] for at in range(0, len(memory), size)]

    def bind_connector_metadata(self, connector_metadata: bytes) -> None:
        self._metadata = self._decoder.decode(connector_metadata)

    def start_load_kv(self) -> None:
        loads, saves = self._metadata.loads, self._metadata.saves
        if not loads and not saves:
            return
        self._blocks.begin()
        if saves:
            self._copier.submit(self._copy_out, saves)
        awaited = []
        for load in loads:
            begun = _Load(load, self._clock() + self._settings.load_timeout)
            self._loads.append(begun)
            if not self._free_reads.acquire(blocking=False):
                begun.end()
                continue
            self._readers.submit(self._read, begun)
            if load.is_awaited:
                awaited.append(begun)
        for begun in awaited:
            begun.wait(max(0.0, begun.deadline - self._clock()))

    def clear_connector_metadata(self) -> None:
        self._metadata = StoreMetadata()

    def get_finished(self) -> tuple[set[int], set[int]]:
        now = self._clock()
        for load in self._loads:
            if now >= load.deadline:
                load.end()
        ended = [load for load in self._loads if load.has_ended]
        num_late = sum(now >= load.deadline and bool(load.missing) for load in ended)
        if num_late and now >= self._next_warning:
            self._next_warning = now + WARNING_SECONDS
            seconds = self._settings.load_timeout
            logger.warning("%d loads of KV blocks have not ended in %g s, so the rest is computed", num_late, seconds)
        self._loads = [load for load in self._loads if not load.has_ended]
        with self._lock:
            for load in ended:
                self._errors.update(load.missing)
            saved, self._saved = self._saved, set()
        return saved, {load.load.id for load in ended}

    def get_block_ids_with_load_errors(self) -> set[int]:
        with self._lock:
            errors, self._errors = self._errors, set()
        return errors

    def get_kv_connector_stats(self) -> TransferStats | None:
        tiers = self._tiers.take()
        with self._lock:
            stats = TransferStats(**self._moved, tiers=tiers)
            self._moved.clear()
        return None if stats == TransferStats() else stats

    def shutdown(self) -> None:
        for load in self._loads:
            load.end()
        self._readers.shutdown(wait=False, cancel_futures=True)  # All loads have ended: none writes to the cache.
        self._copier.shutdown(wait=True, cancel_futures=True)
        self._writer.shutdown(wait=True)  # Blocks that were copied are still written.
        self._tiers.close()
        self._store.close()

    def _read(self, begun: "_Load") -> None:
        """Read a load chunk by chunk, until a block is missing or the load has ended."""
        load, size = begun.load, self._blocks.block_bytes
        num_chunk = max(1, CHUNK_BYTES // size)
        try:
            if begun.has_ended:
                return
            memory = memoryview(bytearray(min(num_chunk, len(load.blocks)) * size))
            for start in range(0, len(load.blocks), num_chunk):
                part = slice(start, start + num_chunk)
                hashes, groups, blocks = load.hashes[part], load.groups[part], load.blocks[part]
                keys = [
                    block_key(self.context.namespace, name, group, self.context.rank)
                    for name, group in zip(hashes, groups, strict=True)
                ]
                buffers = [memory[at * size : (at + 1) * size] for at in range(len(blocks))]
                started = self._clock()
                found = self._store.load(keys, buffers)
                seconds = self._clock() - started
                there = [at for at, is_there in enumerate(found) if is_there]
                if not begun.put(self._blocks, [blocks[at] for at in there], [buffers[at] for at in there]):
                    return
                with self._lock:
                    self._moved["loaded_bytes"] += len(there) * size
                    self._moved["load_seconds"] += seconds
                if len(there) < len(blocks):
                    return  # Blocks after a missing one are useless.
        except Exception as error:  # noqa: BLE001 - a store of another package may raise any error
            logger.error("a load of KV blocks failed, they are computed: %s: %s", type(error).__name__, error)
        finally:
            begun.end()
            self._free_reads.release()

    def _copy_out(self, saves: Sequence[BlockSave]) -> None:
        """Copy as many blocks to the host as there is room for. Then all saves count as ended, also failed ones."""
        wanted = [save for save in saves if self._retention(save) != "none"]
        with self._lock:
            num_staged = min(len(wanted), len(self._staging))
            buffers = [self._staging.pop() for _ in range(num_staged)]
            self._moved["num_unsaved_blocks"] += len(wanted) - num_staged
        staged = wanted[:num_staged]
        try:
            self._blocks.read([save.block for save in staged], buffers)
            self._writer.submit(self._write, staged, buffers)
        except Exception as error:  # noqa: BLE001 - the same
            logger.error("KV blocks could not be copied, they are not saved: %s: %s", type(error).__name__, error)
            self._free_buffers(buffers)
            with self._lock:
                self._moved["num_unsaved_blocks"] += len(staged)
        with self._lock:
            self._saved.update(save.id for save in saves)

    def _write(self, saves: Sequence[BlockSave], buffers: Sequence[memoryview]) -> None:
        num_kept = 0
        for retention in sorted({self._retention(save) for save in saves}):
            places = [at for at, save in enumerate(saves) if self._retention(save) == retention]
            try:
                named = [(saves[at].block_hash, saves[at].group) for at in places]
                keys = [block_key(self.context.namespace, *name, self.context.rank) for name in named]
                num_kept += sum(self._store.save(keys, [buffers[at] for at in places], retention))
            except Exception as error:  # noqa: BLE001 - the same
                logger.error("a save of KV blocks failed: %s: %s", type(error).__name__, error)
        with self._lock:
            self._moved["saved_bytes"] += num_kept * self._blocks.block_bytes
            self._moved["num_unsaved_blocks"] += len(saves) - num_kept
        self._free_buffers(buffers)

    def _retention(self, save: BlockSave) -> Retention:
        return self._settings.retention if save.retention == "default" else save.retention

    def _free_buffers(self, buffers: Sequence[memoryview]) -> None:
        with self._lock:
            self._staging.extend(buffers)


class _Load:
    """A load under way. Once it has ended, it writes no more to the cache."""

    def __init__(self, load: StoreLoad, deadline: float) -> None:
        self.load = load
        self.deadline = deadline
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self.missing = set(load.blocks)  # blocks that are not filled; final once the load has ended

    @property
    def has_ended(self) -> bool:
        return self._is_over.is_set()

    def put(self, cache: KVBlocks, blocks: Sequence[int], buffers: Sequence[memoryview]) -> bool:
        """Copy blocks into the cache; False if the load has ended."""
        with self._lock:
            if self._is_over.is_set():
                return False
            if blocks:
                cache.write(blocks, buffers)
                self.missing.difference_update(blocks)
            return True

    def end(self) -> None:
        """Write no more to the cache; waits for a write that is under way."""
        with self._lock:
            self._is_over.set()

    def wait(self, seconds: float) -> None:
        """Wait for the end; after `seconds`, end the load."""
        if not self._is_over.wait(seconds):
            self.end()
