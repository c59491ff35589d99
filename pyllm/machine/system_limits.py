"""What Linux lets this process take: memory, swap, huge pages, files, processes, shared memory, room in folders.

Knows neither the processor nor a model.
"""

import os
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from pyllm.checkpoint import cache_folder
from pyllm.errors import PyllmError
from pyllm.launch.control_groups import free_processes, read_file
from pyllm.supervision import Memory, host_memory, resolve_folder

SHARED_MEMORY = "shared memory"
PACKED_WEIGHTS = "packed weights"
SOCKETS = "sockets"

_CHOSEN = re.compile(r"\[(\w+)\]")


class Folder(msgspec.Struct, frozen=True):
    """A folder that pyllm writes to: bytes that are free there, and whether it may."""

    purpose: str
    path: str
    free_bytes: int
    writable: bool


class SystemLimits(msgspec.Struct, frozen=True, kw_only=True):
    """None is no limit. `memory` has the machine's and each control group's that has one."""

    memory: tuple[Memory, ...]
    swap_bytes: int
    swap_used_bytes: int
    transparent_huge_pages: str  # always, madvise or never; empty where Linux has none
    open_files: int | None
    most_open_files: int | None  # what a process may raise `open_files` to
    processes: int | None
    control_group_processes: int | None
    folders: tuple[Folder, ...]

    @property
    def available_bytes(self) -> int | None:
        """Of the tightest memory; None where nothing is known."""
        return min((memory.available for memory in self.memory), default=None)

    def folder(self, purpose: str) -> Folder | None:
        """The folder for this, if there is one."""
        return next((folder for folder in self.folders if folder.purpose == purpose), None)


def read_limits(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> SystemLimits:
    """The limits of the machine whose files are below `root`."""
    meminfo = {
        name: int(words[0]) << 10
        for name, _, rest in (line.partition(":") for line in read_file(root / "proc/meminfo").splitlines())
        if (words := rest.split()) and words[0].isdecimal()
    }
    pages = _CHOSEN.search(read_file(root / "sys/kernel/mm/transparent_hugepage/enabled"))
    files, most_files = _limit(root, "Max open files")
    return SystemLimits(
        memory=tuple(host_memory(root)),
        swap_bytes=(swap := meminfo.get("SwapTotal", 0)),
        swap_used_bytes=swap - meminfo.get("SwapFree", swap),
        transparent_huge_pages=pages[1] if pages else "",
        open_files=files,
        most_open_files=most_files,
        processes=_limit(root, "Max processes")[0],
        control_group_processes=free_processes(root),
        folders=_folders(root, environment),
    )


def _limit(root: Path, name: str) -> tuple[int | None, int | None]:
    """Soft and hard limit of `/proc/self/limits`; None where there is none."""
    for line in read_file(root / "proc/self/limits").splitlines():
        if line.startswith(name):
            soft, hard = (*line.removeprefix(name).split(), "", "")[:2]
            return (int(soft) if soft.isdecimal() else None), (int(hard) if hard.isdecimal() else None)
    return None, None


def _folders(root: Path, environment: Mapping[str, str]) -> tuple[Folder, ...]:
    places: dict[str, Callable[[], Path]] = {
        PACKED_WEIGHTS: lambda: cache_folder(environment),
        "models of the hub": _hub_cache,
        "Triton's kernels": lambda: Path(environment.get("TRITON_CACHE_DIR") or Path.home() / ".triton/cache"),
        "records of crashes": lambda: Path(resolve_folder("")),
        SOCKETS: lambda: Path(environment.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()),
        SHARED_MEMORY: lambda: root / "dev/shm",
    }
    return tuple(_folder(purpose, find) for purpose, find in places.items())


def _hub_cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser()


def _folder(purpose: str, find: Callable[[], Path]) -> Folder:
    """A folder as it is, or as it will be: free bytes and permission are those of the nearest one that is there."""
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
