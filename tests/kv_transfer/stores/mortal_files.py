"""The system's files in a process that kills itself by SIGKILL before a chosen operation, or within a write."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path

from pyllm.kv_transfer.stores.file_layer import SystemFiles


class MortalFiles(SystemFiles):
    """The process dies before its `num_operations`-th operation. Only operations that change files count."""

    def __init__(self, num_operations: int) -> None:
        self._num_left = num_operations

    def open(self, path: Path, *, is_new: bool = False) -> int:
        self._count()
        return super().open(path, is_new=is_new)

    def write(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        if self._num_left == 1:
            data = b"".join(buffers)
            os.pwrite(fd, data[: len(data) // 2], offset)
        self._count()
        return super().write(fd, buffers, offset)

    def truncate(self, fd: int, size: int) -> None:
        self._count()
        super().truncate(fd, size)

    def sync_folder(self, folder: Path) -> None:
        self._count()  # To wait for the disk would change nothing: no power is lost.

    def remove(self, path: Path) -> None:
        self._count()
        super().remove(path)

    def unlock(self, fd: int) -> None:
        self._count()
        super().unlock(fd)

    def _count(self) -> None:
        self._num_left -= 1
        if self._num_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
