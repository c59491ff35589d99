"""The index of one process: the live blocks of all open segments, and the readers of each.

Thread-safe; each call is short. Reads no files. Closes a segment's file once the segment is gone and has no readers.
"""

import threading
from collections.abc import Iterable

from pyllm.kv_transfer.stores.file_layer import Files
from pyllm.kv_transfer.stores.segment import Place, Segment


class BlockIndex:
    """The segment of each block. Of two equal blocks it knows the one in the newer segment, which is evicted later.

    Only the index changes `places`, `live_bytes`, `num_readers`, `is_gone` and `runs` of a segment. It sets `fd` to -1
    when it closes the file.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._by_key: dict[bytes, Segment] = {}

    def __contains__(self, key: bytes) -> bool:
        return key in self._by_key

    def acquire(self, key: bytes) -> tuple[Segment, Place] | None:
        """The place of a block. Its segment stays open until `release`, which must follow."""
        with self._lock:
            segment = self._by_key.get(key)
            if segment is None:
                return None
            segment.num_readers += 1
            return segment, segment.places[key]

    def release(self, segment: Segment) -> None:
        """End an `acquire`."""
        with self._lock:
            segment.num_readers -= 1
            self._close_if_unread(segment)

    def enter(self, segment: Segment, places: Iterable[Place], *, replaces: bool = False) -> None:
        """Add blocks of a segment; `replaces`: in place of all earlier ones."""
        with self._lock:
            if replaces:
                self._drop_all(segment)
            for place in places:
                known = self._by_key.get(place.key)
                if known is None or known.sequence <= segment.sequence:
                    if known is not None:
                        self._drop(known, known.places[place.key])
                    self._by_key[place.key] = segment
                    segment.places[place.key] = place
                    segment.live_bytes += place.num_bytes
            segment.runs = None

    def forget(self, segment: Segment, place: Place) -> None:
        """Drop a block that could not be loaded from its place."""
        with self._lock:
            if segment.places.get(place.key) == place:
                self._drop(segment, place)

    def remove(self, segment: Segment) -> None:
        """Drop a segment. Its file is closed now, or by the last reader."""
        with self._lock:
            self._drop_all(segment)
            segment.is_gone = True
            self._close_if_unread(segment)

    def figures(self, segments: Iterable[Segment]) -> dict[str, int]:
        """The fields of `StoreStats` that are sizes, except the capacity."""
        with self._lock:
            runs = [run for segment in segments for run in segment.free_runs()]
            return {
                "used_bytes": sum(segment.end for segment in segments),
                "live_bytes": sum(segment.live_bytes for segment in segments),
                "num_blocks": len(self._by_key),
                "num_free_runs": len(runs),
                "longest_free_run_bytes": max(runs, default=0),
            }

    def _drop(self, segment: Segment, place: Place) -> None:
        del self._by_key[place.key]
        del segment.places[place.key]
        segment.live_bytes -= place.num_bytes
        segment.runs = None

    def _drop_all(self, segment: Segment) -> None:
        for place in list(segment.places.values()):
            self._drop(segment, place)

    def _close_if_unread(self, segment: Segment) -> None:
        if segment.is_gone and segment.num_readers == 0 and segment.fd != -1:
            fd, segment.fd = segment.fd, -1  # A second close could close another file that has the number now.
            self._files.close(fd)
