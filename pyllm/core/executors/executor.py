"""The interface between the step loop and the workers. Knows neither the scheduler nor a transport."""

from collections.abc import Awaitable
from typing import Any, Protocol

from pyllm._rust import Plan
from pyllm.checkpoint.types import Checkpoint
from pyllm.errors import Cause, WorkerDeadError
from pyllm.wire.messages import Sampled


class Executor(Protocol):
    """Runs plans in the order they are submitted."""

    @property
    def death(self) -> WorkerDeadError | None:
        """The death of a rank, until `restart`; None while all ranks live. Steps in flight fail with the same error."""

    async def start(self) -> None:
        """Start the ranks and load the model. Raises StartError with the stage that failed."""

    def submit(self, plan: Plan, transfers: bytes = b"") -> Awaitable[Sampled]:
        """Begin a step without waiting for it; `transfers` is the KV connector's metadata for the ranks.

        The result raises WorkerDeadError when a rank is gone.
        """

    def kill(self, cause: Cause) -> None:
        """End stuck ranks at once; steps in flight fail with `cause`."""

    async def restart(self) -> None:
        """End the remaining ranks and start new, empty ones; steps in flight fail.

        Raises StartError with the stage that failed. You may call it again after that, and after any death.
        """

    async def collective(self, method: str, *args: Any) -> list[Any]:
        """Call a method on every rank, in order with the steps; returns the results in rank order.

        Raises:
            WorkerDeadError: a rank is gone, or was killed because it did not answer in time.
            EngineDeadError: a rank refused the call.
        """

    def use_weights(self, checkpoint: Checkpoint) -> None:
        """Start ranks with this version of the weights from now on; those that run are not changed."""

    async def close(self) -> None:
        """End every rank and free its memory; safe to call twice and on a half-started executor."""
