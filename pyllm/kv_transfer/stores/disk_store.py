"""The store on disk: segments in one folder that several processes read and write, within a size limit.

Blocks are appended. When room is needed, the oldest segment is removed, and its blocks that were loaded are copied into
a newer one. Knows no layout of bytes, and no requests.
"""

import logging
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from pyllm.errors import ConfigError
from pyllm.kv_transfer.stores.block_index import BlockIndex
from pyllm.kv_transfer.stores.block_record import (
    DEAD,
    LONG,
    LONG_PASSES,
    MAX_KEY_BYTES,
    USED,
    RecordHeader,
    checksum,
    new_header,
)
from pyllm.kv_transfer.stores.file_layer import Files, SystemFiles
from pyllm.kv_transfer.stores.segment import Place, Segment
from pyllm.kv_transfer.stores.segment_folder import FolderBusyError, SegmentFolder
from pyllm.kv_transfer.stores.store import Retention, StoreCounter, StoreStats

MAX_SEGMENT_BYTES = 64 << 20  # unless there would be more than MAX_SEGMENTS
MIN_SEGMENTS = 8  # that fit into the capacity
MAX_SEGMENTS = 256  # each is an open file
SPARSE = 0.5  # A segment with a smaller share of live bytes is compacted before the oldest one is removed.

logger = logging.getLogger(__name__)


class DiskStore:
    """Blocks in `folder`: at most `capacity` bytes for all processes together that open it.

    Also after a crash or a power loss, a block is loaded as it was saved or not at all, and the limit holds.

    Raises:
        ConfigError: the folder cannot be made or read.
    """

    def __init__(self, folder: Path, capacity: int, files: Files | None = None) -> None:
        files = SystemFiles() if files is None else files
        self._capacity = capacity
        self._segment_bytes = max(min(MAX_SEGMENT_BYTES, capacity // MIN_SEGMENTS), capacity // MAX_SEGMENTS)
        self._writing = threading.Lock()  # guards the folder and the writer; loads do not need it
        self._is_closed = self._is_released = self._is_busy = self._has_warned = self._has_failed = False
        self._index = BlockIndex(files)
        self._writer: Segment | None = None
        self._marking = threading.Lock()
        self._counter = StoreCounter("disk")
        try:
            files.make_folder(folder)
            self._folder = SegmentFolder(files, folder)
            with ExitStack() as if_it_fails:
                if_it_fails.callback(self.close)
                self._refresh()
                if_it_fails.pop_all()
        except OSError as error:
            raise ConfigError(f"the folder {folder} of the KV store cannot be used: {error}") from None
        self._keep_bound()

    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        """See `KVStore.lookup`. It finds the blocks of other processes unless another thread uses the folder now."""
        self._refresh_if_free()
        found = [not self._is_closed and key in self._index for key in keys]
        self._counter.add("num_queries", len(keys))
        self._counter.add("num_hits", sum(found))
        return found

    def load(self, keys: Sequence[bytes], into: Sequence[memoryview]) -> list[bool]:
        """See `KVStore.load`. Each block is one read into its buffer; the first load also marks it as used."""
        with self._counter.timed("load_seconds"):
            return [self._load_one(key, buffer) for key, buffer in zip(keys, into, strict=True)]

    def save(self, keys: Sequence[bytes], blocks: Sequence[memoryview], retention: Retention = "default") -> list[bool]:
        """See `KVStore.save`. A block that takes more than half a segment is not kept."""
        if retention == "none":
            return [False] * len(keys)
        with self._counter.timed("save_seconds"):
            return self._save(keys, blocks, retention)

    def stats(self) -> list[StoreStats]:
        """See `KVStore.stats`. It finds the blocks of other processes as `lookup` does."""
        self._refresh_if_free()
        sizes = self._index.figures(list(self._folder.segments.values()))
        return [self._counter.stats(capacity_bytes=self._capacity, **sizes)]

    def close(self) -> None:
        """See `KVStore.close`. The next process that saves continues this one's segment.

        It does not wait for calls that are under way: the last of them closes the files.
        """
        self._is_closed = True
        self._release_if_closed()

    def _release_if_closed(self) -> None:
        """Close the files of a closed store, unless a thread works in the folder, which then closes them afterwards."""
        if self._is_closed and self._writing.acquire(blocking=False):
            try:
                if not self._is_released:
                    self._is_released = True
                    self._writer = None
                    for segment in self._folder.close():
                        self._index.remove(segment)
            finally:
                self._writing.release()

    def _load_one(self, key: bytes, into: memoryview) -> bool:
        is_loaded = self._try_to_load(key, into)
        if is_loaded is None:  # Another process may have copied it into another segment.
            self._refresh_if_free()
            is_loaded = self._try_to_load(key, into)
        if is_loaded is None:
            self._counter.add("num_absent")
        return bool(is_loaded)

    def _try_to_load(self, key: bytes, into: memoryview) -> bool | None:
        """Load a block; None: it is not in the index, or not at its place."""
        acquired = None if self._is_closed else self._index.acquire(key)
        if acquired is None:
            return None
        segment, place = acquired
        try:
            return self._read(segment, place, into)
        except OSError as error:
            self._counter.add("num_unreadable")
            logger.debug("a KV block could not be read from %s: %s", segment.path, error)
            return False
        finally:
            self._index.release(segment)

    def _read(self, segment: Segment, place: Place, into: memoryview) -> bool | None:
        if place.value_bytes != len(into):
            return None
        header = segment.read(place, into)
        if header is None or header.state & DEAD:
            self._index.forget(segment, place)
            return None
        is_whole = checksum(into) == header.checksum
        if is_whole:
            self._counter.add("num_loaded")
            self._counter.add("loaded_bytes", len(into))
        else:
            self._index.forget(segment, place)
            is_first = self._counter.add("num_corrupt") == 1
            level = logging.WARNING if is_first else logging.DEBUG  # After a power loss there may be thousands.
            logger.log(level, "a KV block in %s is corrupt and dropped; num_corrupt counts them", segment.path)
        mark = USED if is_whole else DEAD
        if not header.state & mark:
            self._mark(segment, place, mark)
        return is_whole

    def _keep_longer(self, key: bytes) -> None:
        """Mark a stored block with the retention `long`."""
        acquired = self._index.acquire(key)
        if acquired is None:
            return
        segment, place = acquired
        try:
            self._mark(segment, place, LONG)
        finally:
            self._index.release(segment)

    def _mark(self, segment: Segment, place: Place, mark: int) -> None:
        """Add a bit to a record's state."""
        try:
            with self._marking:
                header = segment.header_at(place.offset)
                is_kept_long = mark == LONG and header is not None and header.passes >= LONG_PASSES
                if header is not None and header.key == place.key and not is_kept_long:
                    segment.mark(place, header.state | mark)
        except OSError as error:
            logger.debug("a KV block could not be marked in %s: %s", segment.path, error)

    def _save(self, keys: Sequence[bytes], blocks: Sequence[memoryview], retention: Retention) -> list[bool]:
        self._refresh_if_free()
        headers = [
            None if key in self._index else new_header(key, len(block), checksum(block), retention)
            for key, block in zip(keys, blocks, strict=True)
        ]
        for key, header in zip(keys, headers, strict=True):
            if header is None and retention == "long":
                self._keep_longer(key)
        try:
            with self._writing:
                self._is_busy = False
                return [
                    not self._is_closed
                    and (header is None or header.key in self._index or self._save_one(header, block))
                    for header, block in zip(headers, blocks, strict=True)
                ]
        finally:
            self._release_if_closed()

    def _save_one(self, header: RecordHeader, block: memoryview) -> bool:
        is_saved = False
        if header.num_bytes > self._segment_bytes // 2:
            self._warn_of_size(header)
        elif len(header.key) <= MAX_KEY_BYTES and not self._is_busy:
            try:
                if self._writer is None or not self._writer.has_room(header):
                    self._next_writer(header)
                is_saved = self._writer is not None and self._append(self._writer, header, block)
            except FolderBusyError as error:  # Other blocks of the batch do not wait again.
                self._is_busy = True
                logger.debug("KV blocks were not saved: %s", error)
            except OSError as error:
                level = logging.DEBUG if self._has_failed else logging.WARNING  # With a full disk every save fails.
                self._has_failed = True
                logger.log(
                    level, "a KV block was not saved in %s: %s; num_failed_saves counts them", self._folder.path, error
                )
        self._counter.add("num_saved" if is_saved else "num_failed_saves")
        self._counter.add("saved_bytes", len(block) if is_saved else 0)
        return is_saved

    def _warn_of_size(self, header: RecordHeader) -> None:
        if not self._has_warned:
            self._has_warned = True
            segment_bytes = 2 * header.num_bytes
            num_segments = MIN_SEGMENTS if segment_bytes <= MAX_SEGMENT_BYTES else MAX_SEGMENTS
            logger.warning(
                "KV blocks of %d bytes are not kept in %d bytes of disk: at least %d are needed (kv_cache_disk_size)",
                header.num_bytes,
                self._capacity,
                num_segments * segment_bytes,
            )

    def _append(self, segment: Segment, header: RecordHeader, block: memoryview) -> bool:
        if not segment.has_room(header):
            return False
        self._index.enter(segment, [segment.append(header, block)])
        return True

    def _next_writer(self, header: RecordHeader) -> None:
        """Find a segment with room for the record: one without a writer, else a new one, else none."""
        full, self._writer = self._writer, None
        if full is not None:
            try:
                full.seal(full.in_order())
            finally:
                self._folder.release(full)
        with self._folder.locked():
            self._refresh(force=True)
            self._make_room(self._capacity)
            self._writer = self._take_over(header)
            if self._writer is not None:
                return
            self._make_room(self._capacity - self._segment_bytes)
            if self._folder.taken_bytes() + self._segment_bytes > self._capacity:
                return  # Other processes write all segments.
            self._writer = self._folder.create(self._segment_bytes)
            # Keep room for one more segment, so that the next one can be made before an old one must be removed.
            self._make_room(self._capacity - self._segment_bytes, copy_into=self._writer)

    def _take_over(self, header: RecordHeader) -> Segment | None:
        """A segment without a writer, and with room for the record. Those without room are sealed."""
        for segment in list(self._folder.segments.values()):
            if segment.is_sealed or not self._folder.take_over(segment):
                continue
            try:
                self._index.enter(segment, segment.scan(from_start=True), replaces=True)
                if not segment.is_sealed:
                    segment.truncate()
                    if segment.has_room(header):
                        return segment
                    segment.seal(segment.in_order())
            except OSError as error:  # It stays until it is evicted as the oldest one.
                logger.debug("a segment of the KV store could not be taken over: %s", error)
            self._folder.release(segment)
        return None

    def _make_room(self, max_bytes: int, copy_into: Segment | None = None) -> None:
        """Remove segments until all take `max_bytes` at most: sparse ones first, then the oldest.

        Blocks of up to half a segment's size are copied into `copy_into`. A segment that another process writes stays.
        """
        segments = list(self._folder.segments.values())
        sparse = [segment for segment in segments if segment.is_sealed and segment.live_share < SPARSE]
        others = [segment for segment in segments if segment not in sparse and segment is not self._writer]
        budget = self._segment_bytes // 2
        for segment in sorted(sparse, key=lambda segment: segment.live_share) + others:
            if self._folder.taken_bytes() <= max_bytes:
                return
            if not self._folder.take_over(segment):
                continue  # Another process writes it.
            if copy_into is not None:
                budget -= self._copy_blocks(segment, copy_into, budget, copies_all=segment in sparse)
            num_blocks = len(segment.places)
            if self._folder.remove(segment):
                self._index.remove(segment)
                self._counter.add("num_evicted", num_blocks)
                self._counter.add("num_compactions", segment in sparse)

    def _copy_blocks(self, old: Segment, new: Segment, budget: int, *, copies_all: bool) -> int:
        """Copy blocks into a newer segment: all, or those that survive an eviction. Returns the bytes of the copies."""
        start = new.end
        for place in old.in_order():
            if new.end - start + place.num_bytes > budget:
                break
            value = memoryview(bytearray(place.value_bytes))
            try:
                header = old.read(place, value)
                if header is None or header.state & DEAD or checksum(value) != header.checksum:
                    continue
                copied = header if copies_all else header.after_eviction()
                if copied is not None and not self._append(new, copied, value):
                    break
            except OSError as error:
                logger.debug("a KV block could not be copied from %s: %s", old.path, error)
        return new.end - start

    def _keep_bound(self) -> None:
        """Shrink the folder to the capacity, which may be lower than when the folder was filled."""
        try:
            with self._folder.locked():
                self._refresh(force=True)
                self._make_room(self._capacity)
        except OSError as error:
            logger.warning(
                "the KV store could not be shrunk to %d bytes; the next save tries again: %s", self._capacity, error
            )

    def _refresh_if_free(self) -> None:
        """Find the blocks of other processes, unless another thread uses the folder."""
        if self._writing.acquire(blocking=False):
            try:
                if not self._is_closed:
                    if self._folder.recreate_if_deleted():
                        logger.warning(
                            "the folder %s of the KV store was deleted, and is created again", self._folder.path
                        )
                    self._refresh()
            except OSError as error:
                logger.debug("the folder of the KV store could not be read: %s", error)
            finally:
                self._writing.release()
                self._release_if_closed()

    def _refresh(self, *, force: bool = False) -> None:
        """Find the blocks that other processes have saved and removed. Raises OSError if the folder is unreadable."""
        for segment in self._folder.refresh(force=force):
            if segment is self._writer:
                self._writer = None  # The file was deleted by hand.
            self._index.remove(segment)
        for segment in self._folder.segments.values():
            if segment.is_sealed or segment is self._writer:
                continue
            try:
                places = segment.scan()
                self._index.enter(segment, places, replaces=segment.is_sealed)
            except OSError as error:
                logger.debug("%s could not be read: %s", segment.path, error)
