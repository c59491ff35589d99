"""The folder of a disk store: its segments, the locks of those that write them, and the bytes of all together.

A process that makes or removes a segment holds the folder's lock, and increments the folder's generation afterwards.
When the generation differs, the other processes list the folder again. Knows neither the contents of a segment nor
which one should be removed.
"""

import re
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from pyllm.kv_transfer.stores.file_layer import Files, read_fully, write_fully
from pyllm.kv_transfer.stores.segment import Segment

LOCK_SECONDS = 2.0  # the longest wait of a save while another process makes room
_NAME = re.compile(r"([0-9a-f]{16})-([0-9a-f]+)\.segment")  # sequence number, greatest size in bytes
_GENERATION = struct.Struct("<Q")
_MAX_SEQUENCE = (1 << 63) - 1


class FolderBusyError(OSError):
    """Another process has held the folder's lock for too long."""


class SegmentFolder:
    """The folder as this process sees it. Not thread-safe. Each method may raise OSError."""

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self.path = path
        self._generation = -1
        self.segments: dict[str, Segment] = {}  # by name; oldest first
        self._max_bytes: dict[str, int] = {}  # also of segments that could not be opened
        self._lock_fd = self._open_lock()

    def recreate_if_deleted(self) -> bool:
        """Create the folder again if it was deleted; returns whether it was. Then `refresh` returns its segments."""
        if self._files.has_name(self._lock_fd):
            return False
        self._files.make_folder(self.path)
        deleted, self._lock_fd = self._lock_fd, self._open_lock()
        self._files.close(deleted)
        self._generation = -1
        return True

    def refresh(self, *, force: bool = False) -> list[Segment]:
        """List the folder again if its generation has changed; `force`: in any case.

        Returns:
            The segments that are gone; their files stay open. New segments are not scanned yet.
        """
        generation = self._read_generation()
        if generation == self._generation and not force:
            return []
        names = {name: match for name in self._files.list_names(self.path) if (match := _NAME.fullmatch(name))}
        self._max_bytes = {name: int(match[2], 16) for name, match in names.items()}
        gone = [self.segments.pop(name) for name in list(self.segments) if name not in names]
        is_complete = True
        for name in names.keys() - self.segments.keys():
            sequence, max_bytes = (int(text, 16) for text in names[name].groups())
            try:
                fd = self._files.open(self.path / name)
            except OSError:  # The file is gone, or cannot be opened now: the next call tries again.
                is_complete = False
            else:
                self.segments[name] = Segment(self._files, self.path / name, fd, sequence, max_bytes)
        self.segments = dict(sorted(self.segments.items()))
        if is_complete:
            self._generation = generation
        return gone

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from making and removing segments. Raises FolderBusyError."""
        if not self._files.lock(self._lock_fd, LOCK_SECONDS):
            raise FolderBusyError(f"another process holds {self.path / 'lock'}")
        try:
            yield
        finally:
            self._files.unlock(self._lock_fd)

    def taken_bytes(self) -> int:
        """The greatest size of all segments together. Only the holder of the lock can rely on it."""
        return sum(self._max_bytes.values())

    def create(self, max_bytes: int) -> Segment:
        """Make an empty segment that this process may write. Call it under the lock."""
        # After a power loss, a removed segment must not reappear beside this one.
        self._files.sync_folder(self.path)
        newest = max((int(name.partition("-")[0], 16) for name in self._max_bytes), default=0)
        sequence = (max(newest, self._read_generation()) + 1) & _MAX_SEQUENCE
        name = f"{sequence:016x}-{max_bytes:x}.segment"
        path = self.path / name
        self._max_bytes[name] = max_bytes
        segment = Segment(self._files, path, self._files.open(path, is_new=True), sequence, max_bytes)
        with ExitStack() as if_it_fails:
            if_it_fails.callback(self._files.close, segment.fd)
            if not self._files.lock(segment.fd):
                raise FolderBusyError(f"another process holds {path}")
            if_it_fails.pop_all()
        self.segments[name] = segment
        self._increment_generation()
        return segment

    def remove(self, segment: Segment) -> bool:
        """Remove a segment and free its disk space at once; its file stays open here.

        Call it under the lock, for a segment that `take_over` has locked. Returns False if it cannot be truncated.

        Raises:
            OSError: the file cannot be removed. The store ends there: other segments would be emptied for nothing, too.
        """
        with ExitStack() as if_it_fails:
            if_it_fails.callback(self.release, segment)
            try:
                self._files.truncate(segment.fd, 0)
            except OSError:
                return False
            with suppress(FileNotFoundError):  # An earlier attempt has removed the name.
                self._files.remove(segment.path)
            if_it_fails.pop_all()
        del self.segments[segment.path.name], self._max_bytes[segment.path.name]
        self._increment_generation()
        return True

    def take_over(self, segment: Segment) -> bool:
        """Lock a segment without a writer; returns whether it is locked. Call it under the folder's lock."""
        return self._files.lock(segment.fd)

    def release(self, segment: Segment) -> None:
        """Let others write the segment, or remove it."""
        self._files.unlock(segment.fd)

    def close(self) -> list[Segment]:
        """Close the lock's file. Returns the segments, whose files stay open."""
        self._files.close(self._lock_fd)
        segments, self.segments = list(self.segments.values()), {}
        return segments

    def _open_lock(self) -> int:
        path = self.path / "lock"
        try:
            return self._files.open(path)
        except FileNotFoundError:
            try:
                return self._files.open(path, is_new=True)
            except FileExistsError:
                return self._files.open(path)

    def _read_generation(self) -> int:
        data = memoryview(bytearray(_GENERATION.size))
        read_fully(self._files, self._lock_fd, [data], 0)
        (generation,) = _GENERATION.unpack(data)
        return int(generation)

    def _increment_generation(self) -> None:
        """Let the others list the folder again. If this fails, they miss blocks until the next change."""
        with suppress(OSError):
            generation = (self._read_generation() + 1) & _MAX_SEQUENCE
            write_fully(self._files, self._lock_fd, [memoryview(_GENERATION.pack(generation))], 0)
