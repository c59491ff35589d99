"""Limits of machines that are made up."""

from pathlib import Path

from pyllm.machine.memory import Memory
from pyllm.machine.system_limits import SHARED_MEMORY, read_limits
from tests.machine.made_machines import GIB, LIMITS, write_machine

MEMINFO = "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\nSwapTotal: 2097152 kB\nSwapFree: 1048576 kB\n"


def test_what_linux_says(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/limits": LIMITS,
        "proc/self/cgroup": "0::/box",
        "sys/fs/cgroup/box/memory.max": str(2 * GIB),
        "sys/fs/cgroup/box/memory.current": str(GIB),
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
        "dev/shm/x": "",
    }
    root = write_machine(tmp_path / "root", files)
    found = read_limits({"cache": lambda: tmp_path / "cache/pyllm"}, root)
    assert found.memory == (Memory(4 * GIB, 8 * GIB, "the host"), Memory(GIB, 2 * GIB, "the container"))
    assert (found.available_bytes, found.swap_bytes, found.swap_used_bytes) == (GIB, 2 * GIB, GIB)
    assert (found.open_files, found.most_open_files, found.processes) == (1024, 524288, 31000)
    assert found.transparent_huge_pages == "madvise"
    paths = {folder.purpose: folder.path for folder in found.folders}
    assert paths == {"cache": str(tmp_path / "cache/pyllm"), SHARED_MEMORY: str(root / "dev/shm")}
    cache = found.folder("cache")
    assert cache is not None
    assert cache.writable
    assert cache.free_bytes > 0
    assert found.folder("nothing") is None


def test_a_machine_that_says_nothing_has_no_limits(tmp_path: Path) -> None:
    found = read_limits({}, tmp_path)
    assert (found.memory, found.available_bytes, found.open_files, found.processes) == ((), None, None, None)
    assert (found.swap_bytes, found.swap_used_bytes, found.transparent_huge_pages) == (0, 0, "")
