"""One worker process: started by multiprocessing `spawn` without its configuration, and how its end is told.

Does not know ranks, sockets, or what a worker does with its configuration.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

from pyllm.child import OUT_OF_MEMORY_EXIT_CODE
from pyllm.errors import Cause, WorkerDeadError
from pyllm.supervisor import Process

# What a worker process runs: it is given its end of the connection to its core, over which its configuration comes, and
# the end of a pipe that is to be its stderr.
WorkerEntry = Callable[[Connection, Connection], None]

# The further behind, the less likely that a worker ended so because another one did.
_TELLING: tuple[Cause, ...] = ("crashed", "killed", "out_of_memory", "silent")


def spawn(entry: WorkerEntry, name: str) -> Process:
    """Start a worker, and follow it on the running event loop. Call it from the main thread (see `child.py`)."""
    process = start(entry, name)
    process.watch()
    return process


def start(entry: WorkerEntry, name: str) -> Process:
    """Start a worker that nobody watches yet: there need be no event loop. Call it from the main thread, too."""
    # `spawn` passes on the named descriptors only, so no worker keeps another's connection open after our end.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    stderr, write_end = os.pipe()
    with theirs, Connection(write_end, readable=False) as theirs_stderr:
        started = context.Process(target=entry, args=(theirs, theirs_stderr), daemon=True)
        started.start()
    assert started.pid is not None
    return Process(name, started.pid, ours, partial(_reap, started), stderr)


def _reap(started: SpawnProcess) -> int | None:
    code = started.exitcode
    if code is not None:
        started.close()
    return code


def death(process: Process) -> WorkerDeadError:
    """The end of a worker that has ended, as an exception."""
    return WorkerDeadError(process.obituary(), cause(process), process.log)


def cause(process: Process) -> Cause:
    """Why a worker that has ended did so."""
    if process.silent:
        return "silent"
    code = process.exited.result()
    if code == OUT_OF_MEMORY_EXIT_CODE:
        return "out_of_memory"
    return "killed" if code in (-signal.SIGKILL, -signal.SIGTERM) else "crashed"


def first_to_blame(ended: list[Process]) -> Process:
    """Of the workers that were found dead together, the one whose end explains the others'.

    Ranks that exchange data with one that is gone fail in that exchange, and say so.
    """
    return max(ended, key=lambda process: (_TELLING.index(cause(process)), process.exited.result() < 0))
