"""A process that is never mistaken for another that got its id: noticed when it ends, and signalled until then.

By a pidfd. Where a sandbox refuses those, as gVisor does, by who reaps the process: until then its id is its own. Knows
no role of a process, and no exit code.
"""

import contextlib
import errno
import os
import signal
import threading
from collections.abc import Callable
from typing import Protocol


class ProcessHandle(Protocol):
    """One process, from its start until `close`."""

    def fileno(self) -> int:
        """A descriptor that can be read once the process has ended."""

    def signal(self, number: int) -> None:
        """Send a signal.

        Raises:
            ProcessLookupError: it has been reaped.
        """

    def kill_group(self) -> None:
        """SIGKILL to all of the process group that it leads; to none where it has been reaped."""

    def close(self) -> None:
        """Return the descriptor; to be called when the process has been reaped, or is left alone."""


class PidfdHandle:
    """By a pidfd, which this owns from now on; the process may be anybody's child."""

    def __init__(self, pid: int, pidfd: int) -> None:
        self._pid = pid
        self._pidfd = pidfd

    def fileno(self) -> int:
        return self._pidfd

    def signal(self, number: int) -> None:
        signal.pidfd_send_signal(self._pidfd, number)

    def kill_group(self) -> None:
        _kill_group(self, self._pid)

    def close(self) -> None:
        os.close(self._pidfd)


class WaitedHandle:
    """By a thread that waits for a child of this process. It reaps nothing, so the id stays the child's.

    Nobody else may reap the child before this is closed.

    Raises:
        OSError: there may be no more threads or descriptors.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._is_forgotten = False  # by a kernel that was told to ignore SIGCHLD
        self._descriptor, end = os.pipe()
        thread = threading.Thread(target=self._wait, args=(end,), name=f"wait for {pid}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            os.close(self._descriptor)
            os.close(end)
            text = f"{error} to wait for process {pid}; raise the limits of processes and memory"
            raise OSError(errno.EAGAIN, text) from None

    def fileno(self) -> int:
        return self._descriptor

    def signal(self, number: int) -> None:
        if self._is_forgotten:
            raise ProcessLookupError(errno.ESRCH, f"process {self._pid} has ended")
        os.kill(self._pid, number)

    def kill_group(self) -> None:
        _kill_group(self, self._pid)

    def close(self) -> None:
        os.close(self._descriptor)

    def _wait(self, end: int) -> None:
        try:
            os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            self._is_forgotten = True
        os.close(end)


class RemoteHandle:
    """By the process whose child it is. That holds the other end of a pipe until it has reaped the child, and does
    `send(number, to_group)` for this process, unless it has reaped the child.
    """

    def __init__(self, descriptor: int, send: Callable[[int, bool], None]) -> None:
        self._descriptor = descriptor
        self._send = send

    def fileno(self) -> int:
        return self._descriptor

    def signal(self, number: int) -> None:
        self._send(number, False)

    def kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._send(signal.SIGKILL, True)

    def close(self) -> None:
        os.close(self._descriptor)


def open_pidfd(pid: int) -> int | None:
    """The pidfd of a process, or None where there are none.

    Raises:
        OSError: there may be no more descriptors, or there is no such process.
    """
    try:
        return os.pidfd_open(pid)
    except AttributeError:  # Python was built for a kernel that had none.
        return None
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EPERM):  # Docker's older filters say the latter of any newer call.
            return None
        raise


def child_handle(pid: int) -> ProcessHandle:
    """The handle of a child of this process that has not been reaped.

    Raises:
        OSError: as for `open_pidfd` and `WaitedHandle`.
    """
    pidfd = open_pidfd(pid)
    return WaitedHandle(pid) if pidfd is None else PidfdHandle(pid, pidfd)


def _kill_group(handle: ProcessHandle, pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        handle.signal(0)  # Where it was reaped, its id may be another's.
        os.killpg(pid, signal.SIGKILL)
