"""What is told of the request that runs alone, before each step: whose turn it is. What is lost in its own step, even
this core, is its doing, and can be told by nobody afterwards.

Tells what has changed only. Who runs alone, and for how long, is the quarantine's judgement.
"""

from collections.abc import Callable

from pyllm._rust import Scheduler
from pyllm.core.quarantine import Name, Quarantine
from pyllm.messages import Isolated, IsolationStage


class Turn:
    """`post` sends to a client of this core; `on_alone` tells the parent whether what ends this process from now on is
    the doing of one request.
    """

    def __init__(
        self,
        quarantine: Quarantine,
        scheduler: Scheduler,
        epoch: int,
        post: Callable[[int, Isolated], object],
        on_alone: Callable[[bool], object],
    ) -> None:
        self._quarantine = quarantine
        self._scheduler = scheduler
        self._epoch = epoch
        self._post = post
        self._on_alone = on_alone
        self._told: tuple[Name, IsolationStage] | None = None
        self._is_alone = False  # as `on_alone` was told

    def advance(self) -> None:
        """Let a suspect run alone, and the client of the one before know that it was not to blame."""
        before = self._quarantine.alone
        self._quarantine.advance()
        if before is not None and before != self._quarantine.alone:
            self._told = None
            self._post(before.client, Isolated(self._epoch, before.request, "over"))
            self._tell_alone(False)

    def tell(self) -> None:
        """A step is planned, and about to be submitted."""
        alone = self._quarantine.alone
        if alone is None:
            return
        is_alone = self._quarantine.explains(self._scheduler.requests_in_flight())
        stage: IsolationStage = "alone" if is_alone else "aside"
        if self._told != (alone, stage):
            self._told = alone, stage
            self._post(alone.client, Isolated(self._epoch, alone.request, stage))
        self._tell_alone(is_alone)

    def lose_workers(self) -> None:
        """Nothing is computed until there are others, so that nothing is a request's doing."""
        self._tell_alone(False)

    def _tell_alone(self, is_alone: bool) -> None:
        if is_alone != self._is_alone:
            self._is_alone = is_alone
            self._on_alone(is_alone)
