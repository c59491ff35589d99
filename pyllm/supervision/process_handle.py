"""Handles of processes, safe against reuse of ids: they notice the end of a process, and signal it until then.

A handle uses a pidfd. In sandboxes without pidfds, such as gVisor, it relies on the process that reaps: before that an
id is not reused. Knows no roles of processes, and no exit codes.
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
        """A descriptor that is readable once the process has ended."""

    def signal(self, number: int) -> None:
        """Send a signal.

        Raises:
            ProcessLookupError: the process has been reaped.
        """

    def kill_group(self) -> None:
        """Send SIGKILL to the process group that it leads, unless it has been reaped."""

    def close(self) -> None:
        """Close the descriptor; call it when the process has been reaped, or is not watched any more."""


class PidfdHandle:
    """A handle by a pidfd, which it owns; the process may be the child of any process."""

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
    """A handle by a thread that waits for a child of this process. It does not reap, so the id is not reused.

    The child must not be reaped before this is closed.

    Raises:
        OSError: no thread or descriptor is left.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._is_forgotten = False  # reaped by the kernel, as SIGCHLD is ignored
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
    """A handle by the process's parent. The parent holds the other end of a pipe until it has reaped its child;
    `send(number, to_group)` makes it send a signal, unless it has reaped the child.
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
    """The pidfd of a process, or None if pidfds are not supported.

    Raises:
        OSError: no descriptor is left, or there is no such process.
    """
    try:
        return os.pidfd_open(pid)
    except AttributeError:  # Python was built for a kernel without pidfds.
        return None
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EPERM):  # Docker's older filters give EPERM for newer calls.
            return None
        raise


def child_handle(pid: int) -> ProcessHandle:
    """The handle of a child of this process that has not been reaped.

    Raises:
        OSError: see `open_pidfd` and `WaitedHandle`.
    """
    pidfd = open_pidfd(pid)
    return WaitedHandle(pid) if pidfd is None else PidfdHandle(pid, pidfd)


def _kill_group(handle: ProcessHandle, pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        handle.signal(0)  # It fails if the process was reaped: its id may be reused.
        os.killpg(pid, signal.SIGKILL)
