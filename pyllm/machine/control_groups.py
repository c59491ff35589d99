"""Linux's files below any root, and control groups of version 1 or 2: limits of CPU time and processes.

Source: https://docs.kernel.org/admin-guide/cgroup-v2.html and its predecessor's cgroup-v1/.
"""

from collections.abc import Iterator
from pathlib import Path

_MOUNT = "sys/fs/cgroup"


def read_file(path: Path) -> str:
    """The stripped text of a file in /proc or /sys; empty where it is missing or cannot be read."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def read_figures(path: Path) -> dict[str, int]:
    """The number in each line of a file in /proc or /sys, by the word before it without a colon."""
    lines = (line.split() for line in read_file(path).splitlines())
    return {words[0].rstrip(":"): int(words[1]) for words in lines if len(words) > 1 and words[1].isdecimal()}


def group_folders(root: Path, controller: str) -> Iterator[Path]:
    """The folder of this process's group and those of its parent groups, innermost first, for one controller."""
    for line in read_file(root / "proc/self/cgroup").splitlines():
        _, controllers, own = (*line.split(":", 2), "", "")[:3]
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / _MOUNT / controller if controllers else root / _MOUNT
        group = mount / own.lstrip("/")
        # In a container the path is often the host's, while the group itself is at the mount point.
        yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(mount))


def cpu_quota(root: Path) -> float | None:
    """The lowest CPU limit of the groups of this process, in cores; None without a limit."""
    quotas = []
    for folder in group_folders(root, "cpu"):
        words = read_file(folder / "cpu.max").split()
        if not words:
            words = [read_file(folder / "cpu.cfs_quota_us"), read_file(folder / "cpu.cfs_period_us")]
        if len(words) == 2 and all(word.isdecimal() for word in words) and int(words[1]):
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def free_processes(root: Path) -> int | None:
    """The fewest processes and threads that a group still lets this process start; None without a limit."""
    free = []
    for folder in group_folders(root, "pids"):
        limit, used = read_file(folder / "pids.max"), read_file(folder / "pids.current")
        if limit.isdecimal() and used.isdecimal():
            free.append(max(0, int(limit) - int(used)))
    return min(free, default=None)
