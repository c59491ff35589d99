"""Counts of restarts: of one process, by its id, or of several that are restarted together.

Starts no process.
"""

from collections.abc import Sequence

from pyllm.wire.messages import Restarts


def restarted(before: Restarts | None, pid: int, at: float, reason: str) -> Restarts:
    """The count after one more restart; `pid` is the new process."""
    return Restarts(pid, 1 if before is None else before.num_restarts + 1, at, reason)


def all_restarted(before: Sequence[Restarts], size: int, at: float, reason: str) -> tuple[Restarts, ...]:
    """The counts after one more restart of each of `size` processes, without ids yet; `before` is empty or has all."""
    known: Sequence[Restarts | None] = before or [None] * size
    return tuple(restarted(each, 0, at, reason) for each in known)


def with_pids(restarts: Sequence[Restarts], pids: Sequence[int]) -> tuple[Restarts, ...]:
    """The same counts with the ids of the processes."""
    pairs = zip(restarts, pids, strict=True)
    return tuple(Restarts(pid, each.num_restarts, each.at, each.reason) for each, pid in pairs)
