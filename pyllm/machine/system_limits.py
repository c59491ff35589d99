"""Limits that Linux sets for this process: memory, swap, huge pages, files, processes, shared memory, disk space.

Knows neither the processor nor a model.
"""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from pyllm.errors import PyllmError
from pyllm.machine.control_groups import free_processes, read_figures, read_file
from pyllm.machine.memory import Memory, host_memory

SHARED_MEMORY = "shared memory"

_CHOSEN = re.compile(r"\[(\w+)\]")


class Folder(msgspec.Struct, frozen=True):
    """A folder that pyllm writes to, the bytes free in it, and whether pyllm may write there."""

    purpose: str
    path: str
    free_bytes: int
    writable: bool


class SystemLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits; None is no limit. `memory` has the machine's, and that of each control group that limits it."""

    memory: tuple[Memory, ...]
    swap_bytes: int
    swap_used_bytes: int
    transparent_huge_pages: str  # always, madvise or never; empty where Linux has none
    open_files: int | None
    most_open_files: int | None  # the hard limit, to which a process may raise `open_files`
    processes: int | None
    control_group_processes: int | None
    folders: tuple[Folder, ...]

    @property
    def available_bytes(self) -> int | None:
        """The least memory available under all limits; None where none is known."""
        return min((memory.available for memory in self.memory), default=None)

    def folder(self, purpose: str) -> Folder | None:
        """The folder with this purpose, if there is one."""
        return next((folder for folder in self.folders if folder.purpose == purpose), None)


def read_limits(folders: Mapping[str, Callable[[], Path]], root: Path = Path("/")) -> SystemLimits:
    """The limits of the machine whose files are below `root`; `folders` finds the folder of each purpose."""
    meminfo = read_figures(root / "proc/meminfo")
    pages = _CHOSEN.search(read_file(root / "sys/kernel/mm/transparent_hugepage/enabled"))
    files, most_files = _limit(root, "Max open files")
    return SystemLimits(
        memory=tuple(host_memory(root)),
        swap_bytes=(swap := meminfo.get("SwapTotal", 0) << 10),
        swap_used_bytes=swap - (meminfo.get("SwapFree", swap >> 10) << 10),
        transparent_huge_pages=pages[1] if pages else "",
        open_files=files,
        most_open_files=most_files,
        processes=_limit(root, "Max processes")[0],
        control_group_processes=free_processes(root),
        folders=(
            *(_folder(purpose, find) for purpose, find in folders.items()),
            _folder(SHARED_MEMORY, lambda: root / "dev/shm"),
        ),
    )


def _limit(root: Path, name: str) -> tuple[int | None, int | None]:
    """Soft and hard limit of a row of `/proc/self/limits`; None for unlimited or missing."""
    for line in read_file(root / "proc/self/limits").splitlines():
        if line.startswith(name):
            soft, hard = (*line.removeprefix(name).split(), "", "")[:2]
            return (int(soft) if soft.isdecimal() else None), (int(hard) if hard.isdecimal() else None)
    return None, None


def _folder(purpose: str, find: Callable[[], Path]) -> Folder:
    """A folder, which may not exist yet: free bytes and permission are then those of its nearest existing parent."""
    try:
        path = find().absolute()
    except (PyllmError, OSError, RuntimeError):  # no home
        return Folder(purpose, "", 0, writable=False)
    there = next(place for place in (path, *path.parents) if place.exists())
    try:
        state = os.statvfs(there)
    except OSError:
        return Folder(purpose, str(path), 0, writable=False)
    return Folder(purpose, str(path), state.f_bavail * state.f_frsize, os.access(there, os.W_OK | os.X_OK))
