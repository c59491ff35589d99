"""Turns the end of a worker process into an error with a cause. Knows neither sockets nor the work of a worker."""

import signal

from pyllm.errors import Cause, WorkerDeadError
from pyllm.supervision.child_process import ChildProcess
from pyllm.supervision.parent_link import ORPHANED_EXIT_CODE, OUT_OF_MEMORY_EXIT_CODE

# In order: the later a cause, the less likely it results from another worker's end.
_TELLING: tuple[Cause, ...] = ("crashed", "killed", "out_of_memory", "silent", "orphaned")


def death(process: ChildProcess) -> WorkerDeadError:
    """The exception for a worker that has ended."""
    return WorkerDeadError(process.exit_summary(), _cause(process), process.log)


def first_to_blame(ended: list[ChildProcess]) -> ChildProcess:
    """The worker whose end explains the ends of the others.

    Ranks that exchange data with a dead rank fail, too, and report that exchange.
    """
    return max(ended, key=lambda process: (_TELLING.index(_cause(process)), process.exited.result() < 0))


def _cause(process: ChildProcess) -> Cause:
    """The cause of a worker's end."""
    if process.silent:
        return "silent"
    code = process.exited.result()
    if code == OUT_OF_MEMORY_EXIT_CODE:
        return "out_of_memory"
    if code == ORPHANED_EXIT_CODE:
        return "orphaned"
    return "killed" if code in (-signal.SIGKILL, -signal.SIGTERM) else "crashed"
