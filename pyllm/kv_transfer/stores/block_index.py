"""Which block lies where, as one process knows it: the blocks of each open segment, and who reads them now.

Thread-safe; each call is short. Reads no file, and closes a segment's once it is gone and nobody reads it.
"""

import threading
from collections.abc import Iterable

from pyllm.kv_transfer.stores.file_layer import Files
from pyllm.kv_transfer.stores.segment import Place, Segment, free_runs


class Shelf:
    """A segment with the blocks in it that can be found. Changed by its `BlockIndex` alone."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.places: dict[bytes, Place] = {}
        self.live_bytes = 0
        self.num_readers = 0
        self.is_gone = False
        self.free_runs: list[int] | None = None  # None: to be found anew

    @property
    def live_share(self) -> float:
        """Share of its bytes that are of blocks that can be found."""
        return self.live_bytes / self.segment.end if self.segment.end else 0.0

    def in_order(self) -> list[Place]:
        """Its blocks by offset."""
        return sorted(self.places.values(), key=lambda place: place.offset)


class BlockIndex:
    """The shelf of each block. Of two equal blocks it knows that of the newer segment, as the older one goes first."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._shelves: dict[Segment, Shelf] = {}
        self._by_key: dict[bytes, Shelf] = {}

    def __contains__(self, key: bytes) -> bool:
        return key in self._by_key

    def __len__(self) -> int:
        return len(self._by_key)

    def shelf_of(self, segment: Segment) -> Shelf:
        """The shelf of a segment; an empty one where it is new."""
        with self._lock:
            return self._shelves.setdefault(segment, Shelf(segment))

    def borrow(self, key: bytes) -> tuple[Shelf, Place] | None:
        """Where a block lies. Its segment stays open until `give_back`, which must follow."""
        with self._lock:
            shelf = self._by_key.get(key)
            if shelf is None:
                return None
            shelf.num_readers += 1
            return shelf, shelf.places[key]

    def give_back(self, shelf: Shelf) -> None:
        """End a `borrow`."""
        with self._lock:
            shelf.num_readers -= 1
            self._close_if_unread(shelf)

    def enter(self, shelf: Shelf, places: Iterable[Place], *, replaces: bool = False) -> None:
        """Blocks that were found in a segment; `replaces`: all that are there."""
        with self._lock:
            if replaces:
                self._drop_all(shelf)
            for place in places:
                known = self._by_key.get(place.key)
                if known is None or known.segment.sequence <= shelf.segment.sequence:
                    if known is not None:
                        self._drop(known, known.places[place.key])
                    self._by_key[place.key] = shelf
                    shelf.places[place.key] = place
                    shelf.live_bytes += place.num_bytes
            shelf.free_runs = None

    def forget(self, shelf: Shelf, place: Place) -> None:
        """A block that is not there as it should be."""
        with self._lock:
            if shelf.places.get(place.key) == place:
                self._drop(shelf, place)

    def remove(self, segment: Segment) -> None:
        """A segment that is gone; its file is closed now, or by the last reader."""
        with self._lock:
            shelf = self._shelves.get(segment)
            if shelf is not None:
                self._drop_all(shelf)
                shelf.is_gone = True
                self._close_if_unread(shelf)

    def close(self) -> None:
        """Remove all segments, here and not from the disk."""
        for segment in list(self._shelves):
            self.remove(segment)

    def figures(self) -> dict[str, int]:
        """The fields of `StoreStats` that tell what is there."""
        with self._lock:
            runs: list[int] = []
            for shelf in self._shelves.values():
                if shelf.free_runs is None:
                    shelf.free_runs = free_runs(shelf.segment, shelf.in_order())
                runs += shelf.free_runs
            return {
                "used_bytes": sum(shelf.segment.end for shelf in self._shelves.values()),
                "live_bytes": sum(shelf.live_bytes for shelf in self._shelves.values()),
                "num_blocks": len(self._by_key),
                "num_free_runs": len(runs),
                "longest_free_run_bytes": max(runs, default=0),
            }

    def _drop(self, shelf: Shelf, place: Place) -> None:
        del self._by_key[place.key]
        del shelf.places[place.key]
        shelf.live_bytes -= place.num_bytes
        shelf.free_runs = None

    def _drop_all(self, shelf: Shelf) -> None:
        for place in list(shelf.places.values()):
            self._drop(shelf, place)

    def _close_if_unread(self, shelf: Shelf) -> None:
        if shelf.is_gone and shelf.num_readers == 0 and self._shelves.pop(shelf.segment, None) is not None:
            self._files.close(shelf.segment.fd)
