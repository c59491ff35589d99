"""Control groups of both versions, below a folder that is made up."""

from pathlib import Path

import pytest

from pyllm.machine.control_groups import cpu_quota, free_processes
from tests.machine.made_machines import write_machine


@pytest.mark.parametrize(
    ("files", "quota", "processes"),
    [
        ({}, None, None),
        ({"proc/self/cgroup": "0::/"}, None, None),
        # Version 2, where the group itself is at the mount, as a container sees it.
        (
            {
                "proc/self/cgroup": "0::/host/path",
                "sys/fs/cgroup/cpu.max": "150000 100000",
                "sys/fs/cgroup/pids.max": "100",
                "sys/fs/cgroup/pids.current": "90",
            },
            1.5,
            10,
        ),
        # The tightest of several.
        (
            {
                "proc/self/cgroup": "0::/a/b",
                "sys/fs/cgroup/a/b/cpu.max": "400000 100000",
                "sys/fs/cgroup/a/cpu.max": "50000 100000",
                "sys/fs/cgroup/a/pids.max": "max",
                "sys/fs/cgroup/a/pids.current": "7",
            },
            0.5,
            None,
        ),
        # Version 1, with controllers that share a folder, and one without a limit.
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/docker/x\n3:pids:/docker/x\n1:name=systemd:/\n",
                "sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us": "300000",
                "sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us": "100000",
                "sys/fs/cgroup/pids/docker/x/pids.max": "50",
                "sys/fs/cgroup/pids/docker/x/pids.current": "60",
            },
            3.0,
            0,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu:/",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            None,
            None,
        ),
        ({"proc/self/cgroup": "garbage\n:\n0::", "sys/fs/cgroup/cpu.max": "much 0"}, None, None),
    ],
)
def test_limits_of_groups(tmp_path: Path, files: dict[str, str], quota: float | None, processes: int | None) -> None:
    root = write_machine(tmp_path, files)
    assert (cpu_quota(root), free_processes(root)) == (quota, processes)
