"""A process is followed and signalled alike by every kind of handle; the fork server's is in `tests/core/executors`."""

import errno
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from pyllm.supervision.process_handle import (
    PidfdHandle,
    ProcessHandle,
    RemoteHandle,
    WaitedHandle,
    child_handle,
    open_pidfd,
)

both_ways = pytest.mark.parametrize("handle_of", [child_handle, WaitedHandle])
HandleOf = Callable[[int], ProcessHandle]


def started(code: str = "input()") -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, process_group=0)


def can_be_read(handle: ProcessHandle, seconds: float) -> bool:
    poll = select.poll()
    poll.register(handle.fileno(), select.POLLIN)
    return bool(poll.poll(seconds * 1000))


@both_ways
def test_an_end_is_noticed_and_the_exit_code_left_to_who_reaps(handle_of: HandleOf) -> None:
    with started("input(); raise SystemExit(7)") as process:
        handle = handle_of(process.pid)
        assert not can_be_read(handle, 0.0)
        process.communicate(b"\n")  # which reaps
        assert can_be_read(handle, 30.0)
        handle.close()
        assert process.returncode == 7


@both_ways
def test_a_signal_reaches_it_and_after_its_end_nobody(handle_of: HandleOf) -> None:
    with started() as process:
        handle = handle_of(process.pid)
        handle.signal(signal.SIGTERM)
        assert can_be_read(handle, 30.0)
        handle.signal(signal.SIGKILL)  # It has not been reaped.
        handle.kill_group()
        handle.close()
        assert process.wait() == -signal.SIGTERM


@both_ways
def test_a_child_that_the_kernel_reaps_is_signalled_no_more(handle_of: HandleOf) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with started() as process:
            handle = handle_of(process.pid)
            handle.signal(signal.SIGKILL)
            assert can_be_read(handle, 30.0)
            with pytest.raises(ProcessLookupError):
                handle.signal(signal.SIGTERM)
            handle.kill_group()
            handle.close()
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_what_another_process_reaps_is_signalled_by_that_one() -> None:
    descriptor, end = os.pipe()
    sent: list[tuple[int, bool]] = []
    handle = RemoteHandle(descriptor, lambda number, to_group: sent.append((number, to_group)))
    assert not can_be_read(handle, 0.0)
    handle.signal(signal.SIGTERM)
    handle.kill_group()
    assert sent == [(signal.SIGTERM, False), (signal.SIGKILL, True)]
    os.close(end)
    assert can_be_read(handle, 0.0)
    handle.close()


def test_pidfds_are_taken_where_there_are_any() -> None:
    handle = child_handle(os.getpid())
    assert isinstance(handle, PidfdHandle)
    handle.close()


def test_without_pidfds_a_thread_waits() -> None:
    """In a process that the kernel refuses them."""
    code = (
        "import subprocess, sys\n"
        "from tests.without_pidfd import refuse_pidfds\n"
        "from pyllm.supervision.process_handle import child_handle, open_pidfd\n"
        "refuse_pidfds()\n"
        "with subprocess.Popen(['true']) as child: print(open_pidfd(child.pid), type(child_handle(child.pid)).__name__)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "None WaitedHandle\n"


def test_a_process_that_is_not_there_is_no_want_of_pidfds() -> None:
    with started("") as process:
        process.wait()
    with pytest.raises(ProcessLookupError) as caught:
        open_pidfd(process.pid)
    assert caught.value.errno == errno.ESRCH
