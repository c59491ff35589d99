"""The index of one process: the live blocks of each open segment, and the number of its readers.

Thread-safe; each call is short. Reads no files. Closes a segment's file once the segment is gone and has no readers.
"""

import threading
from collections.abc import Iterable

from pyllm.kv_transfer.stores.file_layer import Files
from pyllm.kv_transfer.stores.segment import Place, Segment, free_runs


class IndexedSegment:
    """A segment and its live blocks. Only its `BlockIndex` changes it."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.places: dict[bytes, Place] = {}
        self.live_bytes = 0
        self.num_readers = 0
        self.is_gone = False
        self.free_runs: list[int] | None = None  # bytes of each gap; None: not computed since the blocks changed

    @property
    def live_share(self) -> float:
        """The share of its bytes that live blocks take."""
        return self.live_bytes / self.segment.end if self.segment.end else 0.0

    def in_order(self) -> list[Place]:
        """Its blocks in order of offset."""
        return sorted(self.places.values(), key=lambda place: place.offset)


class BlockIndex:
    """The segment of each block. Of two equal blocks it knows the one in the newer segment, which is evicted later."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._segments: dict[Segment, IndexedSegment] = {}
        self._by_key: dict[bytes, IndexedSegment] = {}

    def __contains__(self, key: bytes) -> bool:
        return key in self._by_key

    def __len__(self) -> int:
        return len(self._by_key)

    def entry_of(self, segment: Segment) -> IndexedSegment:
        """The entry of a segment; a new segment gets an empty one."""
        with self._lock:
            return self._segments.setdefault(segment, IndexedSegment(segment))

    def acquire(self, key: bytes) -> tuple[IndexedSegment, Place] | None:
        """The place of a block. Its segment stays open until `release`, which must follow."""
        with self._lock:
            entry = self._by_key.get(key)
            if entry is None:
                return None
            entry.num_readers += 1
            return entry, entry.places[key]

    def release(self, entry: IndexedSegment) -> None:
        """End an `acquire`."""
        with self._lock:
            entry.num_readers -= 1
            self._close_if_unread(entry)

    def enter(self, entry: IndexedSegment, places: Iterable[Place], *, replaces: bool = False) -> None:
        """Add blocks of a segment; `replaces`: in place of all earlier ones."""
        with self._lock:
            if replaces:
                self._drop_all(entry)
            for place in places:
                known = self._by_key.get(place.key)
                if known is None or known.segment.sequence <= entry.segment.sequence:
                    if known is not None:
                        self._drop(known, known.places[place.key])
                    self._by_key[place.key] = entry
                    entry.places[place.key] = place
                    entry.live_bytes += place.num_bytes
            entry.free_runs = None

    def forget(self, entry: IndexedSegment, place: Place) -> None:
        """Drop a block that could not be loaded from its place."""
        with self._lock:
            if entry.places.get(place.key) == place:
                self._drop(entry, place)

    def remove(self, segment: Segment) -> None:
        """Drop a segment. Its file is closed now, or by the last reader."""
        with self._lock:
            entry = self._segments.get(segment)
            if entry is not None:
                self._drop_all(entry)
                entry.is_gone = True
                self._close_if_unread(entry)

    def close(self) -> None:
        """Drop all segments; their files stay on the disk."""
        for segment in list(self._segments):
            self.remove(segment)

    def figures(self) -> dict[str, int]:
        """The fields of `StoreStats` that are sizes, except the capacity."""
        with self._lock:
            runs: list[int] = []
            for entry in self._segments.values():
                if entry.free_runs is None:
                    entry.free_runs = free_runs(entry.segment, entry.in_order())
                runs += entry.free_runs
            return {
                "used_bytes": sum(entry.segment.end for entry in self._segments.values()),
                "live_bytes": sum(entry.live_bytes for entry in self._segments.values()),
                "num_blocks": len(self._by_key),
                "num_free_runs": len(runs),
                "longest_free_run_bytes": max(runs, default=0),
            }

    def _drop(self, entry: IndexedSegment, place: Place) -> None:
        del self._by_key[place.key]
        del entry.places[place.key]
        entry.live_bytes -= place.num_bytes
        entry.free_runs = None

    def _drop_all(self, entry: IndexedSegment) -> None:
        for place in list(entry.places.values()):
            self._drop(entry, place)

    def _close_if_unread(self, entry: IndexedSegment) -> None:
        if entry.is_gone and entry.num_readers == 0 and self._segments.pop(entry.segment, None) is not None:
            self._files.close(entry.segment.fd)
