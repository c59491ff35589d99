"""The interface between the executor and the source of its worker processes. Knows no message of a worker."""

from typing import NamedTuple, Protocol

from pyllm.checkpoint.types import Checkpoint
from pyllm.config.process_config import WorkerConfig
from pyllm.supervision.child_process import ChildProcess
from pyllm.wire.curve import CurveKeys


class PreparedRank(NamedTuple):
    """A rank with a place to run: its configuration, and the core's keys for its socket if that is encrypted."""

    worker: WorkerConfig
    keys: CurveKeys | None = None


class WorkerSource(Protocol):
    """Starts worker processes, one start of all ranks at a time. They report the address that they listen on."""

    def use_weights(self, checkpoint: Checkpoint) -> None:
        """Prepare ranks with this version of the weights from now on."""

    async def prepare(self) -> list[PreparedRank]:
        """Find a place for every rank of a new start, in rank order; call `release` before the next start.

        Raises:
            StartError: there is no place; the text has the requested and the available resources.
        """

    async def start(self, worker: WorkerConfig) -> ChildProcess:
        """Start the process of a prepared rank; it is watched, and not configured yet. Raises StartError."""

    async def release(self) -> None:
        """Free the resources of a start whose processes have ended; safe without a start."""

    async def close(self) -> None:
        """Start no more processes, and end the remaining ones."""
