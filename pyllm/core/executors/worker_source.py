"""The interface between the executor and whoever starts its worker processes. Knows no message of a worker."""

from typing import NamedTuple, Protocol

from pyllm.config.process_config import WorkerConfig
from pyllm.supervision.child_process import ChildProcess
from pyllm.wire.curve import CurveKeys


class PreparedRank(NamedTuple):
    """A rank that has a place: its configuration, and the core's keys for its socket if that is encrypted."""

    worker: WorkerConfig
    keys: CurveKeys | None = None


class WorkerSource(Protocol):
    """Starts worker processes, all ranks of one start after another. They report the address that they listen on."""

    async def prepare(self) -> list[PreparedRank]:
        """Find a place for every rank of a new start, in rank order; `release` comes before the next one.

        Raises:
            StartError: there is none; the text says what was asked for and what is there.
        """

    async def start(self, worker: WorkerConfig) -> ChildProcess:
        """Start the process of a prepared rank; it is watched, and not configured yet. Raises StartError."""

    async def release(self) -> None:
        """Give back what a start has taken, when its processes have ended; safe without one."""

    def close(self) -> None:
        """Start no more processes, and end what is left."""
