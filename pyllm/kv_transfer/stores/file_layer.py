"""The operations on files that the disk store needs, as Linux defines them.

All of the store's I/O passes here, so that a test can use a simulated disk that fails. Knows no segments and no blocks.
"""

import errno
import fcntl
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

_LOCK_POLL = 0.005  # seconds


class Files(Protocol):
    """Files by path and by descriptor. Each method raises OSError as the system call does."""

    def make_folder(self, folder: Path) -> None:
        """Make a folder and those above it, where they are missing."""

    def list_names(self, folder: Path) -> list[str]:
        """The names in a folder, in any order."""

    def open(self, path: Path, *, is_new: bool = False) -> int:
        """Open for reading and writing; `is_new`: create the file, and fail if it exists."""

    def close(self, fd: int) -> None:
        """Close a file, which releases its lock."""

    def read(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        """Read into the buffers, one after the other; returns the bytes read, maybe fewer than the buffers have."""

    def write(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        """Write the buffers, one after the other; returns the bytes written, maybe fewer than the buffers have."""

    def size(self, fd: int) -> int:
        """The size of a file in bytes."""

    def has_name(self, fd: int) -> bool:
        """Whether an open file still has a name in a folder."""

    def truncate(self, fd: int, size: int) -> None:
        """Shrink a file to `size` bytes. The rest of the disk space is free at once, even if others have it open."""

    def sync_folder(self, folder: Path) -> None:
        """Wait until the names in a folder survive a power loss."""

    def remove(self, path: Path) -> None:
        """Remove a name."""

    def lock(self, fd: int, seconds: float = 0.0) -> bool:
        """Try to lock a file against its other descriptors, for `seconds`; returns whether it is locked."""

    def unlock(self, fd: int) -> None:
        """Release the lock."""


class SystemFiles:
    """`Files` of the operating system. Locks are advisory (flock), and end with their process."""

    def make_folder(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def list_names(self, folder: Path) -> list[str]:
        return os.listdir(folder)

    def open(self, path: Path, *, is_new: bool = False) -> int:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if is_new else 0), 0o600)

    def close(self, fd: int) -> None:
        os.close(fd)

    def read(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        return os.preadv(fd, buffers, offset)

    def write(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        return os.pwritev(fd, buffers, offset)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def has_name(self, fd: int) -> bool:
        return os.fstat(fd).st_nlink > 0

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def sync_folder(self, folder: Path) -> None:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def remove(self, path: Path) -> None:
        os.unlink(path)

    def lock(self, fd: int, seconds: float = 0.0) -> bool:
        deadline = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return False
                time.sleep(_LOCK_POLL)
            else:
                return True

    def unlock(self, fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_UN)


def read_fully(files: Files, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
    """Fill the buffers; returns the bytes read, fewer than the buffers have only at the end of the file."""
    wanted = sum(map(len, buffers))
    total = files.read(fd, buffers, offset)
    while total < wanted:
        count = files.read(fd, _after(buffers, total), offset + total)
        if count == 0:
            break
        total += count
    return total


def write_fully(files: Files, fd: int, buffers: Sequence[memoryview], offset: int) -> None:
    """Write all of the buffers. Raises OSError; then a part may be written."""
    wanted = sum(map(len, buffers))
    total = files.write(fd, buffers, offset)
    while total < wanted:
        count = files.write(fd, _after(buffers, total), offset + total)
        if count == 0:
            raise OSError(errno.EIO, f"nothing was written at {offset + total}")
        total += count


def _after(buffers: Sequence[memoryview], count: int) -> list[memoryview]:
    """The buffers without their first `count` bytes."""
    rest = []
    for buffer in buffers:
        skipped = min(count, len(buffer))
        count -= skipped
        if skipped < len(buffer):
            rest.append(buffer[skipped:])
    return rest
