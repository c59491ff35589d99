"""Memory that can still be had, of the machine and of each control group around this process; whom its want ended."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

# Memory is short below so much of it, whichever is less, and there is enough again from twice as much on.
LOW_SHARE = 0.05
LOW_BYTES = 1 << 30

_ROOT = Path("/")
_OOM_KILLS = "oom_kill"


class Memory(msgspec.Struct, frozen=True):
    """Bytes that can still be had without swapping, of those that `owner` may have in all."""

    available: int
    total: int
    owner: str

    @property
    def is_short(self) -> bool:
        """Whether something should be given back."""
        return self.available < self._low

    @property
    def is_enough(self) -> bool:
        """Whether nothing need be given back any more."""
        return self.available >= 2 * self._low

    @property
    def _low(self) -> float:
        return min(LOW_SHARE * self.total, LOW_BYTES)


class _Version(NamedTuple):
    """Of control groups: what stands before a group's name in `/proc/self/cgroup`, where groups lie, their files."""

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

    What cannot be read is left out, all of it where there is no Linux.
    """
    memories = []
    figures = _figures(root / "proc/meminfo")
    total = figures.get("MemTotal:", 0) << 10
    if "MemAvailable:" in figures and total:
        memories.append(Memory(figures["MemAvailable:"] << 10, total, "the host"))
    for version in _VERSIONS:
        for group in _groups(root, version):
            limit, used = _text(group / version.limit), _text(group / version.used)
            # No limit is a large number in version 1.
            if limit.isdecimal() and used.isdecimal() and not 0 < total <= int(limit):
                memories.append(
                    Memory(max(0, int(limit) - int(used) + _file_bytes(group)), int(limit), "the container")
                )
    return memories


def num_oom_kills(root: Path = _ROOT) -> int:
    """Processes that the kernel has ended for want of memory: of this control group, else of the machine."""
    return _figures(_counter_of_oom_kills(root)).get(_OOM_KILLS, 0)


@cache
def _counter_of_oom_kills(root: Path) -> Path:
    """The file that has their number."""
    counters = (group / version.events for version in _VERSIONS for group in _groups(root, version))
    return next((path for path in counters if _OOM_KILLS in _figures(path)), root / "proc/vmstat")


def _file_bytes(group: Path) -> int:
    """Pages of files are let go of for whoever needs room, as in MemAvailable: a model's file fills any limit."""
    statistics = _figures(group / "memory.stat")
    names = ("active_file", "inactive_file")
    # In version 1 those of the groups within are in the total only.
    return sum(statistics.get(f"total_{name}", statistics.get(name, 0)) for name in names)


def _groups(root: Path, version: _Version) -> Iterator[Path]:
    """The folders of this process's control group and of all around it."""
    mount = root / version.mount
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, found, own = line.partition(version.prefix)
        if found:
            group = mount / own
            yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(mount))


def _figures(path: Path) -> dict[str, int]:
    """The first number of each line, by the word before it."""
    lines = (line.split() for line in _text(path).splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdecimal()}


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
