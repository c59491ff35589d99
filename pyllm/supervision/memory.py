"""Host memory: how much is left on the machine and in each control group, how to give back unused pages, and which
errors mean that it ran out. Imports no torch.
"""

import ctypes
import errno
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

# Memory is short below the lesser of these, and there is enough again from twice as much on.
LOW_SHARE = 0.05
LOW_BYTES = 1 << 30

_ROOT = Path("/")
_OOM_KILLS = "oom_kill"


class Memory(msgspec.Struct, frozen=True):
    """Bytes that are available without swapping, of the total of `owner`."""

    available: int
    total: int
    owner: str

    @property
    def is_short(self) -> bool:
        """Whether memory should be freed."""
        return self.available < self._low

    @property
    def is_enough(self) -> bool:
        """Whether there is enough memory again."""
        return self.available >= 2 * self._low

    @property
    def _low(self) -> float:
        return min(LOW_SHARE * self.total, LOW_BYTES)


class _Version(NamedTuple):
    """A version of control groups: the prefix of a group's name in `/proc/self/cgroup`, the mount point, the files."""

    prefix: str
    mount: str
    limit: str
    used: str
    events: str


_VERSIONS = (
    _Version("0::/", "sys/fs/cgroup", "memory.max", "memory.current", "memory.events"),
    _Version(
        "memory:/", "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control"
    ),
)


def host_memory(root: Path = _ROOT) -> list[Memory]:
    """The machine's memory, and that of each control group around this process that has a limit.

    Unreadable figures are left out; without Linux all are.
    """
    memories = []
    figures = _figures(root / "proc/meminfo")
    total = figures.get("MemTotal:", 0) << 10
    if "MemAvailable:" in figures and total:
        memories.append(Memory(figures["MemAvailable:"] << 10, total, "the host"))
    for version in _VERSIONS:
        for group in _groups(root, version):
            limit, used = _text(group / version.limit), _text(group / version.used)
            # In version 1 a large number means no limit.
            if limit.isdecimal() and used.isdecimal() and not 0 < total <= int(limit):
                memories.append(
                    Memory(max(0, int(limit) - int(used) + _file_bytes(group)), int(limit), "the container")
                )
    return memories


def num_oom_kills(root: Path = _ROOT) -> int:
    """The number of processes killed by the kernel for lack of memory: in this control group, else on the machine."""
    return _figures(_counter_of_oom_kills(root)).get(_OOM_KILLS, 0)


@cache
def _counter_of_oom_kills(root: Path) -> Path:
    """The file with the number of OOM kills."""
    counters = (group / version.events for version in _VERSIONS for group in _groups(root, version))
    return next((path for path in counters if _OOM_KILLS in _figures(path)), root / "proc/vmstat")


def _file_bytes(group: Path) -> int:
    """Bytes of file pages, which the kernel frees on demand, as in MemAvailable: a model's file fills any limit."""
    statistics = _figures(group / "memory.stat")
    names = ("active_file", "inactive_file")
    # In version 1 only the total includes child groups.
    return sum(statistics.get(f"total_{name}", statistics.get(name, 0)) for name in names)


def _groups(root: Path, version: _Version) -> Iterator[Path]:
    """The folders of this process's control group and of all its parents."""
    mount = root / version.mount
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, found, own = line.partition(version.prefix)
        if found:
            group = mount / own
            yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(mount))


def _figures(path: Path) -> dict[str, int]:
    """The number in each line, by the word before it."""
    lines = (line.split() for line in _text(path).splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdecimal()}


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


_MADV_DONTNEED = 4
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \d+ *(/?)")


def return_freed_memory() -> None:
    """Return freed memory to the system (4 ms); otherwise glibc kept all 55 MB of dropped cache entries."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it
    if malloc_trim is not None:
        malloc_trim(0)


def forget_files() -> None:
    """Drop clean pages of mapped files, such as libraries, which can be read again: imports read more than is used."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for begin, end in clean_mappings(Path("/proc/self/smaps").read_text()):
        madvise(begin, end - begin, _MADV_DONTNEED)


def clean_mappings(smaps: str) -> list[tuple[int, int]]:
    """The begin and end addresses of private file mappings without changed pages. Changed pages, such as relocated
    ones, exist only in memory or swap, so their mappings are left out.
    """
    mappings: list[tuple[int, int]] = []
    candidate, changed = None, 0
    for line in smaps.splitlines():
        if (match := _MAPPING.match(line)) is not None:
            begin, end, permissions, path = match.groups()
            candidate = (int(begin, 16), int(end, 16)) if permissions.endswith("p") and path else None
        elif line.startswith("Anonymous:"):
            changed = int(line.split()[1])
        elif line.startswith("Swap:") and candidate is not None and changed + int(line.split()[1]) == 0:
            mappings.append(candidate)
    return mappings


# Texts of torch's CPU allocators in a plain RuntimeError; CUDA's error has its own class.
_TEXTS = ("DefaultCPUAllocator", "can't allocate memory", "CUDA out of memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of Python, the system or torch means that memory ran out."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    if not isinstance(error, RuntimeError):
        return False
    return type(error).__name__ == "OutOfMemoryError" or any(text in str(error) for text in _TEXTS)
