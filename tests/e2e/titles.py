"""The titles of a server's processes, and the processes that carry one, below the one that supervises them."""

import contextlib
from collections.abc import Iterable

import psutil

SUPERVISOR, STATE, FORK_SERVER = "pyllm::serve", "pyllm::state", "pyllm::forks"
# The first of each.
API, CORE, WORKER = "pyllm::api-0", "pyllm::core-0", "pyllm::worker-0-0"


def find(root: int, title: str, generations: int | None = None) -> list[psutil.Process]:
    """Living processes with a title: `root`, and its descendants, of so many generations only where that is given."""
    found, level = [], [psutil.Process(root)]
    while level:
        found += [process for process in level if _carries(process, title)]
        level = [child for process in level for child in _children(process)] if generations != 0 else []
        generations = None if generations is None else generations - 1
    return found


def find_one(roots: Iterable[int], title: str) -> psutil.Process:
    """The one process with a title among `roots` and below them."""
    (process,) = {process for root in roots for process in find(root, title)}
    return process


def _carries(process: psutil.Process, title: str) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.cmdline()[:1] == [title] and process.status() != psutil.STATUS_ZOMBIE
    return False


def _children(process: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.children()
    return []
