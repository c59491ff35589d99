"""A disk in memory that fails on demand: short reads and writes, flipped bits, ENOSPC, EIO, locks that are held for too
long, processes that die before any operation or within a write, and power losses.

A power loss keeps names that were synced, and everything that an earlier power loss has kept. Each other name and each
other sector is as before its last change or as after it; a new sector may be zero.
"""

import errno
import random
from collections.abc import Sequence
from pathlib import Path

import msgspec

SECTOR = 512


class KilledError(BaseException):
    """The process is dead. No `except OSError` catches this, and every further operation raises it again."""


class Faults(msgspec.Struct, frozen=True):
    """The probability of each fault, 0 to 1."""

    short: float = 0.0
    flip: float = 0.0
    error: float = 0.0
    full: float = 0.0
    busy: float = 0.0


class Inode:
    def __init__(self) -> None:
        self.content = bytearray()
        self.durable = b""
        self.descriptors: set[tuple[int, int]] = set()
        self.holder: tuple[int, int] | None = None  # of the lock


class SimulatedDisk:
    """The disk of all processes. `peak_bytes` is the most that files with a name or a descriptor ever took."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.names: dict[Path, Inode] = {}
        self.durable_names: dict[Path, Inode] = {}
        self.opened: list[Inode] = []  # ever
        self.peak_bytes = 0
        self.num_processes = 0

    def inodes(self) -> list[Inode]:
        """The files that have a name or are open, which take room."""
        is_open = [inode for inode in self.opened if inode.descriptors]
        return list({id(inode): inode for inode in (*self.names.values(), *is_open)}.values())

    def measure(self) -> None:
        self.peak_bytes = max(self.peak_bytes, sum(len(inode.content) for inode in self.inodes()))

    def lose_power(self) -> None:
        """All processes have to be dead."""
        names = {}
        for path in sorted(self.names.keys() | self.durable_names.keys()):
            before, after = self.durable_names.get(path), self.names.get(path)
            inode = self.random.choice((before, after))
            if inode is not None:
                names[path] = inode
        for inode in names.values():
            self._lose(inode)
        self.names, self.durable_names = names, dict(names)
        self.opened.clear()
        self.measure()

    def _lose(self, inode: Inode) -> None:
        before, after = inode.durable, bytes(inode.content)
        size = self.random.choice((len(before), len(after), self.random.randint(0, max(len(before), len(after)))))
        if before == after:
            size = len(after)
        kept = bytearray()
        for start in range(0, size, SECTOR):
            old, new = (content[start : start + SECTOR].ljust(SECTOR, b"\0") for content in (before, after))
            # A sector that was synced before is overwritten whole or not at all; a new one may be allocated alone.
            states = (old, new) if start + SECTOR <= len(before) else (old, new, bytes(SECTOR))
            kept += old if old == new else self.random.choice(states)
        inode.content, inode.durable = kept[:size], bytes(kept[:size])
        inode.holder = None
        inode.descriptors.clear()


class SimulatedFiles:
    """`Files` of one process on a simulated disk. It dies at its `kill_at`-th operation, if that is not 0."""

    def __init__(self, disk: SimulatedDisk, faults: Faults | None = None, kill_at: int = 0) -> None:
        self.disk = disk
        self.faults = faults or Faults()
        self.kill_at = kill_at
        self.num_operations = 0
        self.is_dead = False
        disk.num_processes += 1
        self.number = disk.num_processes
        self.open_files: dict[int, Inode] = {}

    def die(self) -> None:
        self.is_dead = True
        for fd in list(self.open_files):
            self._close(fd)

    def make_folder(self, folder: Path) -> None:
        self._begin()

    def list_names(self, folder: Path) -> list[str]:
        self._begin()
        self._may_fail()
        return [path.name for path in self.disk.names if path.parent == folder]

    def open(self, path: Path, *, is_new: bool = False) -> int:
        self._begin()
        self._may_fail()
        if is_new and path in self.disk.names:
            raise FileExistsError(errno.EEXIST, "there", str(path))
        if not is_new and path not in self.disk.names:
            raise FileNotFoundError(errno.ENOENT, "not there", str(path))
        if is_new:
            self._may_be_full()
            self.disk.names[path] = Inode()
        inode = self.disk.names[path]
        fd = min(set(range(3, len(self.open_files) + 4)) - self.open_files.keys())
        self.open_files[fd] = inode
        inode.descriptors.add((self.number, fd))
        if inode not in self.disk.opened:
            self.disk.opened.append(inode)
        return fd

    def close(self, fd: int) -> None:
        self._begin()
        self._close(fd)

    def read(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        self._begin()
        self._may_fail()
        data = bytearray(self.open_files[fd].content[offset : offset + sum(map(len, buffers))])
        self._flip(data)
        data = data[: self._maybe_less(len(data))]
        count, position = len(data), 0
        for buffer in buffers:
            part = data[position : position + len(buffer)]
            buffer[: len(part)] = part
            position += len(part)
        return count

    def write(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        data = bytearray(b"".join(buffers))
        dies = self._is_last()
        if not dies:
            self._begin()
            self._may_fail()
            self._may_be_full()
        self._flip(data)
        size = self.disk.random.randint(0, len(data)) if dies else self._maybe_less(len(data))
        content = self.open_files[fd].content
        content.extend(bytes(max(0, offset + size - len(content))))
        content[offset : offset + size] = data[:size]
        self.disk.measure()
        if dies:
            self._begin()
        self._may_fail()  # All is written, and an error is told.
        return size

    def size(self, fd: int) -> int:
        self._begin()
        self._may_fail()
        return len(self.open_files[fd].content)

    def has_name(self, fd: int) -> bool:
        self._begin()
        self._may_fail()
        return any(inode is self.open_files[fd] for inode in self.disk.names.values())

    def truncate(self, fd: int, size: int) -> None:
        self._begin()
        self._may_fail()
        content = self.open_files[fd].content
        del content[size:]
        content.extend(bytes(size - len(content)))

    def sync_folder(self, folder: Path) -> None:
        self._begin()
        self._may_fail()
        self.disk.durable_names = dict(self.disk.names)

    def remove(self, path: Path) -> None:
        self._begin()
        self._may_fail()
        if path not in self.disk.names:
            raise FileNotFoundError(errno.ENOENT, "not there", str(path))
        del self.disk.names[path]

    def lock(self, fd: int, seconds: float = 0.0) -> bool:
        self._begin()
        inode = self.open_files[fd]
        if inode.holder not in (None, (self.number, fd)) or self._happens(self.faults.busy):
            return False
        inode.holder = (self.number, fd)
        return True

    def unlock(self, fd: int) -> None:
        self._begin()
        inode = self.open_files[fd]
        if inode.holder == (self.number, fd):
            inode.holder = None

    def _close(self, fd: int) -> None:
        inode = self.open_files.pop(fd)
        inode.descriptors.discard((self.number, fd))
        if inode.holder == (self.number, fd):
            inode.holder = None

    def _is_last(self) -> bool:
        return self.num_operations + 1 == self.kill_at

    def _begin(self) -> None:
        if self._is_last():
            self.die()
        if self.is_dead:
            raise KilledError
        self.num_operations += 1

    def _happens(self, rate: float) -> bool:
        return self.disk.random.random() < rate

    def _may_fail(self) -> None:
        if self._happens(self.faults.error):
            raise OSError(errno.EIO, "a simulated error of the medium")

    def _may_be_full(self) -> None:
        if self._happens(self.faults.full):
            raise OSError(errno.ENOSPC, "simulated: no space is left")

    def _flip(self, data: bytearray) -> None:
        if data and self._happens(self.faults.flip):
            data[self.disk.random.randrange(len(data))] ^= 1 << self.disk.random.randrange(8)

    def _maybe_less(self, size: int) -> int:
        """Never 0 of more: that would be the end of the file."""
        return self.disk.random.randint(1, size) if size and self._happens(self.faults.short) else size
