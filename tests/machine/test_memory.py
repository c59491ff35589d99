"""The kernel's figures of memory, for the machine and for every control group around this process."""

from pathlib import Path

import psutil

from pyllm.machine.memory import LOW_BYTES, Memory, host_memory, num_oom_kills

GIB = 1 << 30


def test_a_twentieth_of_a_large_machine_is_not_short() -> None:
    assert not Memory(LOW_BYTES + 1, 1000 * GIB, "").is_short
    assert Memory(LOW_BYTES - 1, 1000 * GIB, "").is_short
    assert Memory(GIB // 10, 4 * GIB, "").is_short
    assert not Memory(GIB // 10, GIB, "").is_short


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_kernels_word_is_read_for_the_host_and_every_group_around(tmp_path: Path) -> None:
    """Pages of files count as available, as they do in MemAvailable."""
    write(tmp_path / "proc/meminfo", "MemTotal:       1000 kB\nMemFree:  1 kB\nMemAvailable:    400 kB\n")
    write(tmp_path / "proc/self/cgroup", "1:cpu:/ignored\n0::/pod/container\n")
    groups = tmp_path / "sys/fs/cgroup"
    write(groups / "memory.stat", "anon 1\n")
    write(groups / "pod/memory.max", "900000\n")
    write(groups / "pod/memory.current", "500000\n")
    write(groups / "pod/memory.stat", "anon 400000\nactive_file 60000\ninactive_file 40000\n")
    write(groups / "pod/container/memory.max", "max\n")
    write(groups / "pod/container/memory.current", "500000\n")
    assert host_memory(tmp_path) == [
        Memory(400 << 10, 1000 << 10, "the host"),
        Memory(500_000, 900_000, "the container"),
    ]


def test_version_1_of_control_groups_has_other_names(tmp_path: Path) -> None:
    """In a container the name is the host's, and the group itself lies at the root; above it is no limit."""
    write(tmp_path / "proc/meminfo", "MemTotal:       1000 kB\nMemAvailable:    400 kB\n")
    write(tmp_path / "proc/self/cgroup", "8:cpu:/ignored\n2:memory:/docker/1\n0::/docker/1\n")
    groups = tmp_path / "sys/fs/cgroup/memory"
    write(groups / "memory.limit_in_bytes", "900000\n")
    write(groups / "memory.usage_in_bytes", "500000\n")
    write(groups / "memory.stat", "active_file 1\ntotal_active_file 60000\ntotal_inactive_file 40000\n")
    host = Memory(400 << 10, 1000 << 10, "the host")
    assert host_memory(tmp_path) == [host, Memory(500_000, 900_000, "the container")]
    write(groups / "memory.limit_in_bytes", "9223372036854771712\n")
    assert host_memory(tmp_path) == [host]


def test_a_container_that_sees_itself_as_the_root_has_its_limit(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "0::/\n")
    write(tmp_path / "sys/fs/cgroup/memory.max", "1000\n")
    write(tmp_path / "sys/fs/cgroup/memory.current", "2000\n")
    assert host_memory(tmp_path) == [Memory(0, 1000, "the container")]


def test_where_there_is_nothing_to_read_there_is_no_limit(tmp_path: Path) -> None:
    assert host_memory(tmp_path) == []


def test_this_machine_tells_of_its_memory() -> None:
    host = host_memory()[0]
    assert host.total == psutil.virtual_memory().total
    assert 0 < host.available < host.total


def test_the_kernels_kills_are_those_of_the_own_control_group_or_else_the_machines(tmp_path: Path) -> None:
    machine, first, second = (tmp_path / name for name in ("machine", "first", "second"))
    for root in (machine, first, second):
        write(root / "proc/vmstat", "pgfault 9\noom_kill 7\n")
    assert num_oom_kills(machine) == 7
    write(first / "proc/self/cgroup", "2:memory:/docker/1\n0::/docker/1\n")
    write(first / "sys/fs/cgroup/memory/docker/1/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert num_oom_kills(first) == 2
    write(second / "proc/self/cgroup", "0::/\n")
    events = second / "sys/fs/cgroup/memory.events"
    write(events, "oom 4\noom_kill 3\noom_group_kill 0\n")
    assert num_oom_kills(second) == 3
    write(events, "oom 5\noom_kill 4\n")
    assert num_oom_kills(second) == 4
    assert num_oom_kills(tmp_path / "none") == 0
