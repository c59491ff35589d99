"""Starts a child process, which waits for its configuration. Watches none: that is `supervision/child_process.py`."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import NamedTuple


class StartedChild(NamedTuple):
    """A child that is not watched yet: our ends of its connection and of its stderr, and its shared memory, if any."""

    process: "subprocess.Popen[bytes]"
    connection: Connection
    stderr: int
    memory: int | None


def start_child(name: str, role: str, *files: int, memory_size: int = 0, module: str = "pyllm") -> StartedChild:
    """Start `python -m pyllm`, or another module, in a child role; it waits for its configuration.

    The user's script is not imported again. `files` are descriptors that the child inherits; it gets their numbers.
    With `memory_size` the last one is for shared memory of this many bytes, zeros at first; its contents are in
    `ChildProcess.memory` at the end. Call it from the main thread or from the event loop's: the kernel's parent-death
    signal fires when the starting thread ends.

    Raises:
        OSError: the kernel has no process, memory or descriptor left; nothing stays open.
    """
    ours, theirs = Pipe()
    log, stderr = os.pipe()
    memory = None
    with theirs, os.fdopen(stderr, "wb"), contextlib.ExitStack() as unless_started:
        unless_started.callback(ours.close)
        unless_started.callback(os.close, log)
        if memory_size:
            memory = os.memfd_create(name)
            unless_started.callback(os.close, memory)
            os.ftruncate(memory, memory_size)
            files += (memory,)
        numbers = (theirs.fileno(), int(_thread_stays()), *files)
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-P", "-m", module, "_child", role, *map(str, numbers)],
            pass_fds=(theirs.fileno(), *files),
            stdin=subprocess.DEVNULL,
            stderr=stderr,
            process_group=0,  # Ctrl-C in a terminal goes only to the parent, which then drains its children.
        )
        unless_started.pop_all()
    return StartedChild(process, ours, log, memory)


def reap(process: "subprocess.Popen[bytes]") -> int | None:
    """The exit code of a child, or None while it runs; that of SIGKILL if the kernel does not know it.

    The kernel forgets it if the application ignores SIGCHLD. `Popen` returns 0 then, as for an orderly end.
    """
    if process.returncode is not None:
        return process.returncode
    try:
        pid, status = os.waitpid(process.pid, os.WNOHANG)
    except ChildProcessError:
        process.returncode = -signal.SIGKILL
    else:
        process.returncode = os.waitstatus_to_exitcode(status) if pid else None
    return process.returncode


def _thread_stays() -> bool:
    """Whether this thread lives as long as its children: the main thread, or an event loop's, which watches them."""
    if threading.current_thread() is threading.main_thread():
        return True
    import asyncio  # Not at the top: a worker needs none.

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
