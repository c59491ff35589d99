"""How the death of a worker process is told. Does not know how it came to be, sockets, or what a worker does."""

import signal

from pyllm.child import ORPHANED_EXIT_CODE, OUT_OF_MEMORY_EXIT_CODE
from pyllm.errors import Cause, WorkerDeadError
from pyllm.supervisor import Process

# The further behind, the less likely that a worker ended so because another one did.
_TELLING: tuple[Cause, ...] = ("crashed", "killed", "out_of_memory", "silent", "orphaned")


def death(process: Process) -> WorkerDeadError:
    """The end of a worker that has ended, as an exception."""
    return WorkerDeadError(process.obituary(), _cause(process), process.log)


def first_to_blame(ended: list[Process]) -> Process:
    """Of the workers that were found dead together, the one whose end explains the others'.

    Ranks that exchange data with one that is gone fail in that exchange, and say so.
    """
    return max(ended, key=lambda process: (_TELLING.index(_cause(process)), process.exited.result() < 0))


def _cause(process: Process) -> Cause:
    """Why a worker that has ended did so."""
    if process.silent:
        return "silent"
    code = process.exited.result()
    if code == OUT_OF_MEMORY_EXIT_CODE:
        return "out_of_memory"
    if code == ORPHANED_EXIT_CODE:
        return "orphaned"
    return "killed" if code in (-signal.SIGKILL, -signal.SIGTERM) else "crashed"
