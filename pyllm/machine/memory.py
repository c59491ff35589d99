"""Memory that is left on the machine and in each control group around this process; processes that the kernel killed
for lack of it. Knows no cache that could shrink.
"""

from functools import cache
from pathlib import Path

import msgspec

from pyllm.machine.control_groups import group_folders, read_figures, read_file

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


def host_memory(root: Path = _ROOT) -> list[Memory]:
    """The machine's memory, and that of each control group around this process that has a limit.

    Unreadable figures are left out; without Linux all are.
    """
    memories = []
    figures = read_figures(root / "proc/meminfo")
    total = figures.get("MemTotal", 0) << 10
    if "MemAvailable" in figures and total:
        memories.append(Memory(figures["MemAvailable"] << 10, total, "the host"))
    for group in group_folders(root, "memory"):
        limit = read_file(group / "memory.max") or read_file(group / "memory.limit_in_bytes")
        used = read_file(group / "memory.current") or read_file(group / "memory.usage_in_bytes")
        # In version 1 a large number means no limit.
        if limit.isdecimal() and used.isdecimal() and not 0 < total <= int(limit):
            memories.append(Memory(max(0, int(limit) - int(used) + _file_bytes(group)), int(limit), "the container"))
    return memories


def num_oom_kills(root: Path = _ROOT) -> int:
    """The number of processes killed by the kernel for lack of memory: in this control group, else on the machine."""
    return read_figures(_counter_of_oom_kills(root)).get(_OOM_KILLS, 0)


@cache
def _counter_of_oom_kills(root: Path) -> Path:
    """The file with the number of OOM kills."""
    names = ("memory.events", "memory.oom_control")
    counters = (group / name for group in group_folders(root, "memory") for name in names)
    return next((path for path in counters if _OOM_KILLS in read_figures(path)), root / "proc/vmstat")


def _file_bytes(group: Path) -> int:
    """Bytes of file pages, which the kernel frees on demand, as in MemAvailable: a model's file fills any limit."""
    statistics = read_figures(group / "memory.stat")
    names = ("active_file", "inactive_file")
    # In version 1 only the total includes child groups.
    return sum(statistics.get(f"total_{name}", statistics.get(name, 0)) for name in names)
