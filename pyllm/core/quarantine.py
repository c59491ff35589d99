"""The requests that had rows in a fatal step. Each runs alone until it has shown that the step did not die of it.

Judges by the scheduler's word alone; who is told, and how workers come back, is not its concern.
"""

import logging
from collections import deque
from typing import NamedTuple

from pyllm._rust import Scheduler, SchedulerError
from pyllm.errors import Cause, WorkerDeadError

HOLD = "quarantine"
# Deaths of workers while they computed nothing but one request, after which it is failed. A signal from elsewhere, and
# silence, may be the fault of the machine, and say less about the request.
_DEATHS_ALONE: dict[Cause, int] = {"killed": 2, "silent": 2, "crashed": 1, "stalled": 1, "out_of_memory": 1}
_TIMES = {2: "twice, the second time", 3: "three times, the last two"}

logger = logging.getLogger(__name__)


class Name(NamedTuple):
    """What a scheduler knows a request by."""

    client: int
    request: int


class Verdict(NamedTuple):
    """A request that is to end, and why, in words for its client."""

    name: Name
    reason: str


class _Suspect(NamedTuple):
    name: Name
    cause: Cause  # of the death for which it is one
    num_steps: int  # that were in flight then: it has to get past each of them

    def deaths_alone(self, cause: Cause) -> int:
        """How many it may cause in this way; want of memory is not held against it before steps were made smaller."""
        is_first = cause == "out_of_memory" and self.cause != cause
        return _DEATHS_ALONE[cause] + is_first


class Quarantine:
    """Empty in ordinary times. Plan no step ahead while it is not, so that each death has one step to blame."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.num_failures = 0
        self._scheduler = scheduler
        self._held: deque[_Suspect] = deque()
        self._alone: _Suspect | None = None
        self._steps_left = 0  # of the one alone, after the one that it is to get past now
        self._deaths_alone = 0

    def __len__(self) -> int:
        return len(self._held) + (self._alone is not None)

    @property
    def is_next_due(self) -> bool:
        """Whether there are some, and none of them runs alone."""
        return len(self) > 0 and self._scheduler.isolated() is None

    def explains(self, requests: list[tuple[int, int]]) -> bool:
        """Whether a death in a step of these is the doing of the one that runs alone."""
        return self._alone is not None and requests == [self._alone.name]

    def accuse(self, death: WorkerDeadError, steps: list[int], requests: list[tuple[int, int]]) -> Verdict | None:
        """The workers died in the first of `steps`, or in one planned ahead of it, when these had rows in flight.

        They are held, unless it is clear which one it was. Call it when the scheduler has lost the device. Gives the
        request that is to end.
        """
        names = [Name(*request) for request in requests]
        alone = self._alone
        if alone is not None and self.explains(requests):
            self._deaths_alone += 1
            if self._deaths_alone < alone.deaths_alone(death.cause):
                return None  # It is isolated still, and tried again.
            verdict = Verdict(alone.name, _reason(death, steps[0], self._deaths_alone))
            logger.error("client %d's request %d is failed: %s", *verdict.name, verdict.reason)
            self._alone = None
            self.num_failures += 1
            return verdict
        for name in names:
            if alone is None or name != alone.name:
                self._scheduler.hold(*name, HOLD)
                self._held.append(_Suspect(name, death.cause, len(steps)))
        if names:
            logger.warning("%d requests were in the fatal step, and run one by one: %s", len(names), names)
        return None

    def advance(self) -> None:
        """Let the next one run alone if the one before is cleared or has ended; call it before each plan."""
        if self._alone is not None:
            if self._scheduler.isolated() is not None:
                return
            if self._steps_left and self._isolate(self._alone):
                self._steps_left -= 1
                return
            self._alone = None
        while self._held and self._alone is None:
            suspect = self._held.popleft()
            try:
                self._scheduler.release(*suspect.name)
            except SchedulerError:
                continue  # It has ended meanwhile.
            self._isolate(suspect)
            self._alone, self._steps_left, self._deaths_alone = suspect, suspect.num_steps - 1, 0

    def _isolate(self, suspect: _Suspect) -> bool:
        """Whether it has not ended meanwhile."""
        try:
            self._scheduler.isolate(*suspect.name)
        except SchedulerError:
            return False
        return True


def _reason(death: WorkerDeadError, step: int, deaths_alone: int) -> str:
    times = _TIMES[deaths_alone + 1]
    return f"this request ended the worker that computed it {times} alone: {death}, in step {step}"
