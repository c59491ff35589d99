"""What the step loop needs of the side that runs the model. Knows neither the scheduler nor a transport."""

from collections.abc import Awaitable
from typing import Any, Protocol

from pyllm._rust import Plan
from pyllm.errors import Cause, WorkerDeadError
from pyllm.messages import Sampled


class Executor(Protocol):
    """Runs plans in the order they are submitted."""

    @property
    def death(self) -> WorkerDeadError | None:
        """How a rank died, until `restart`; None while all of them live. Steps fail with it; without one, look here."""

    async def start(self) -> None:
        """Start the ranks and load the model. Raises StartError with the stage that failed."""

    def submit(self, plan: Plan) -> Awaitable[Sampled]:
        """Begin a step without waiting for it. The result raises WorkerDeadError when a rank is gone."""

    def kill(self, cause: Cause) -> None:
        """End the ranks at once, as ones that do not go on by themselves; what is in flight fails with `cause`."""

    async def restart(self) -> None:
        """End what is left of the ranks and start new ones, which know nothing; what was in flight fails.

        Raises StartError with the stage that failed. May be called again then, and after any death.
        """

    async def collective(self, method: str, *args: Any) -> list[Any]:
        """Call a method on every rank, in order with the steps; the results in rank order.

        Raises:
            WorkerDeadError: a rank is gone, or has been ended because it did not answer in time.
            EngineDeadError: a rank refused the call.
        """

    async def close(self) -> None:
        """End every rank and free what they held; safe to call twice and on a half-started executor."""
