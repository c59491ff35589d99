"""Reports which request runs alone: to its client, and to the parent process.

If the workers or this core end in such a step, that request is to blame. The report comes before the step, as a crash
leaves no time for it. The quarantine decides which request runs alone, and for how long.
"""

from collections.abc import Callable

from pyllm._rust import Scheduler
from pyllm.core.faults.quarantine import Quarantine, RequestKey
from pyllm.wire.messages import Isolated, IsolationStage


class IsolationReporter:
    """`post` sends to a client of this core. `on_alone(True)` is called when a suspect begins to run alone, and
    `on_alone(False)` when it has stopped.
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
        self._reported: tuple[RequestKey, IsolationStage] | None = None
        self._is_alone = False  # in the last call of `on_alone`

    def advance(self) -> None:
        """Advance the quarantine to the next suspect if it is due; report to the last one's client that it is over."""
        if not self._quarantine:
            return
        before = self._quarantine.alone
        self._quarantine.advance()
        if before is not None and before != self._quarantine.alone:
            self._reported = None
            self._post(before.client, Isolated(self._epoch, before.request, "over"))
            self._set_alone(False)

    def announce(self) -> None:
        """Report which request runs alone in the planned step; call it before the step is submitted."""
        alone = self._quarantine.alone
        if alone is None:
            return
        is_alone = self._quarantine.explains(self._scheduler.requests_in_flight())
        stage: IsolationStage = "alone" if is_alone else "aside"
        if self._reported != (alone, stage):
            self._reported = alone, stage
            self._post(alone.client, Isolated(self._epoch, alone.request, stage))
        self._set_alone(is_alone)

    def workers_lost(self) -> None:
        """Report that nothing runs, so that no request is to blame until new workers compute."""
        self._set_alone(False)

    def _set_alone(self, is_alone: bool) -> None:
        if is_alone != self._is_alone:
            self._is_alone = is_alone
            self._on_alone(is_alone)
