import os
import signal
import subprocess
import sys

import pytest

from pyllm.supervision.started_child import reap, start_child


def test_a_child_that_the_kernel_has_forgotten_did_not_end_in_order() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        os.waitpid(process.pid, 0)  # as where SIGCHLD is ignored
        assert reap(process) == -signal.SIGKILL


def test_an_exit_code_is_known_once_the_child_has_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", "input(); raise SystemExit(3)"], stdin=subprocess.PIPE) as process:
        assert reap(process) is None
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.close()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert reap(process) == 3


def test_what_cannot_be_started_leaves_no_descriptor() -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="too long"):
        start_child("child", "x" * (1 << 20), memory_size=1)
    assert os.listdir("/proc/self/fd") == before
