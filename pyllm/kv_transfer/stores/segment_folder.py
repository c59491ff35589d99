"""The folder of a disk store: which segments there are, who may write one, and how many bytes they take together.

Whoever makes or removes a segment holds the folder's lock, and counts the folder's generation up afterwards: the others
look again when it differs. Does not know what is in a segment, and which one should go.
"""

import re
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from pyllm.kv_transfer.stores.file_layer import Files, read_fully, write_fully
from pyllm.kv_transfer.stores.segment import Segment

LOCK_SECONDS = 2.0  # most that a save waits for another process to make room
_NAME = re.compile(
    r"([0-9a-f]{16})-([0-9a-f]+)\.segment"
)  # its place in the order of all, the most bytes that it takes
_GENERATION = struct.Struct("<Q")
_MAX_SEQUENCE = (1 << 63) - 1


class FolderBusyError(OSError):
    """Another process has held the folder's lock for too long."""


class SegmentFolder:
    """The folder as this process sees it. Not thread-safe. Each method raises OSError."""

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self.path = path
        self._generation = -1
        self.segments: dict[str, Segment] = {}  # by name; oldest first
        self._max_bytes: dict[str, int] = {}  # also of segments that could not be opened
        self._lock_fd = self._open_lock()

    def renew(self) -> bool:
        """Create the folder again if it was deleted; whether it was. Then `refresh` gives its segments as gone."""
        if self._files.has_name(self._lock_fd):
            return False
        self._files.make_folder(self.path)
        deleted, self._lock_fd = self._lock_fd, self._open_lock()
        self._files.close(deleted)
        self._generation = -1
        return True

    def refresh(self, *, lists_anew: bool = False) -> list[Segment]:
        """Look again if another process has made or removed segments; `lists_anew`: whatever it has told.

        Returns:
            The segments that are gone, whose files stay open. New ones are not scanned yet.
        """
        generation = self._read_generation()
        if generation == self._generation and not lists_anew:
            return []
        names = {name: match for name in self._files.list_names(self.path) if (match := _NAME.fullmatch(name))}
        self._max_bytes = {name: int(match[2], 16) for name, match in names.items()}
        gone = [self.segments.pop(name) for name in list(self.segments) if name not in names]
        is_complete = True
        for name in names.keys() - self.segments.keys():
            sequence, max_bytes = (int(text, 16) for text in names[name].groups())
            try:
                fd = self._files.open(self.path / name)
            except OSError:  # gone, or not to be read now: the next call looks again
                is_complete = False
            else:
                self.segments[name] = Segment(self._files, self.path / name, fd, sequence, max_bytes)
        self.segments = dict(sorted(self.segments.items()))
        if is_complete:
            self._generation = generation
        return gone

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep all other processes from making and removing segments; raises FolderBusyError."""
        if not self._files.lock(self._lock_fd, LOCK_SECONDS):
            raise FolderBusyError(f"another process holds {self.path / 'lock'}")
        try:
            yield
        finally:
            self._files.unlock(self._lock_fd)

    def taken_bytes(self) -> int:
        """The most that all segments take, full or not. Only the holder of the lock can rely on it."""
        return sum(self._max_bytes.values())

    def create(self, max_bytes: int) -> Segment:
        """Make an empty segment that this process may write. Under the lock."""
        # What was removed, by whichever process, must not come back beside this one after a power loss.
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
        self._count_up()
        return segment

    def remove(self, segment: Segment) -> bool:
        """Free its bytes at once, also those that readers have open; its file stays open here. Under the lock.

        Returns:
            False where it stays: another process writes it, or it cannot be cut.

        Raises:
            OSError: its name stays. Those of others would, too, and they still have their blocks.
        """
        if not self._files.lock(segment.fd):
            return False
        try:
            self._files.truncate(segment.fd, 0)
        except OSError:
            self._files.unlock(segment.fd)
            return False
        try:
            with suppress(FileNotFoundError):  # An earlier try came so far.
                self._files.remove(segment.path)
        except OSError:
            self._files.unlock(segment.fd)
            raise
        del self.segments[segment.path.name], self._max_bytes[segment.path.name]
        self._count_up()
        return True

    def take_over(self, segment: Segment) -> bool:
        """Whether this process may write the segment now, as its writer is gone. Under the lock."""
        return self._files.lock(segment.fd)

    def release(self, segment: Segment) -> None:
        """Let others write the segment, or remove it."""
        self._files.unlock(segment.fd)

    def close(self) -> None:
        """Close the lock; segments are closed by who knows that nobody reads them."""
        self._files.close(self._lock_fd)

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

    def _count_up(self) -> None:
        """Tell the others. If that fails they learn it the next time; until then they miss blocks."""
        with suppress(OSError):
            generation = (self._read_generation() + 1) & _MAX_SEQUENCE
            write_fully(self._files, self._lock_fd, [memoryview(_GENERATION.pack(generation))], 0)
