"""The requests that had rows in a fatal step, or that cores died with, and whatever comes while workers die often. Each
runs alone until it has shown that it does not end them.

Judges by the scheduler's word alone; who is told, and how workers come back, is not its concern.
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from pyllm._rust import Scheduler, SchedulerError
from pyllm.errors import Cause, WorkerDeadError, blame
from pyllm.messages import CLEARING_TOKENS

HOLD = "quarantine"
# Cores that a client has lost in a row with a request, each with hardly a token of it, which make it suspect.
_LOSSES = 2
# Deaths of workers while they computed nothing but one request, after which it is failed. A signal from elsewhere, and
# silence, may be the fault of the machine, and say less about the request.
_DEATHS_ALONE: dict[Cause, int] = {"killed": 2, "silent": 2, "crashed": 1, "stalled": 1, "out_of_memory": 1}

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
    cause: Cause | None  # of the death for which it is one; None: no worker's
    num_steps: int  # that it has to get past alone
    is_new: bool = False  # whether it has come where workers died often, and nothing else is held against it

    def deaths_alone(self, cause: Cause) -> int:
        """How many it may cause in this way.

        A first death of workers is not held against it, nor is want of memory before steps were made smaller.
        """
        is_first = self.cause is None or (cause == "out_of_memory" and self.cause != cause)
        return _DEATHS_ALONE[cause] + is_first

    def deaths(self, deaths_alone: int) -> int:
        """How often it has ended workers if it has done so this often alone."""
        return deaths_alone + (self.cause is not None)


class Quarantine:
    """Empty in ordinary times. Plan no step ahead while it is not, so that each death has one step to blame.

    `is_wary()` says whether workers die so often that it may be the doing of requests that come again and again. While
    they do, whatever comes is tried alone before it may join the others, and all suspects are for longer.
    """

    def __init__(self, scheduler: Scheduler, is_wary: Callable[[], bool]) -> None:
        self.num_failures = 0
        self._scheduler = scheduler
        self._is_wary = is_wary
        self._held: deque[_Suspect] = deque()
        self._alone: _Suspect | None = None
        self._steps_left = 0  # of the one alone, after the one that it is to get past now
        self._deaths_alone = 0

    def __len__(self) -> int:
        return len(self._held) + (self._alone is not None)

    @property
    def alone(self) -> Name | None:
        """The request that runs alone."""
        return None if self._alone is None else self._alone.name

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
                # It is isolated still, and tried again, from the first of the steps that it may take to do this.
                self._alone = alone._replace(num_steps=max(alone.num_steps, CLEARING_TOKENS))
                self._steps_left = self._alone.num_steps - 1
                return None
            times = alone.deaths(self._deaths_alone)
            verdict = Verdict(alone.name, f"{blame('worker', times, self._deaths_alone)}: {death}, in step {steps[0]}")
            logger.error("client %d's request %d is failed: %s", *verdict.name, verdict.reason)
            self._alone = None
            self.num_failures += 1
            return verdict
        if alone is not None:
            self._steps_left = alone.num_steps - 1  # It may end new workers only when they have done as many.
        # What ends workers again and again may take some tokens each time.
        num_steps = CLEARING_TOKENS if self._is_wary() else len(steps)
        for name in names:
            if alone is None or name != alone.name:
                self._hold(_Suspect(name, death.cause, num_steps))
        if names:
            logger.warning("%d requests were in the fatal step, and run one by one: %s", len(names), names)
        return None

    def admit(self, name: Name, num_losses: int) -> None:
        """Judge a request that has just come, by the number of cores that were lost while they had it."""
        if num_losses >= _LOSSES:
            # Most that ends a core does so at once. With one lost after that, too, it may be what takes some tokens.
            num_steps = 1 if num_losses == _LOSSES else CLEARING_TOKENS
            self._hold(_Suspect(name, None, num_steps))
            logger.warning("client %d's request %d was with %d cores that were lost: it runs alone", *name, num_losses)
        elif self._is_wary():
            self._hold(_Suspect(name, None, CLEARING_TOKENS, is_new=True))

    def advance(self) -> None:
        """Let the next one run alone if the one before is cleared or has ended; call it before each plan."""
        if self._alone is not None:
            if self._scheduler.isolated() is not None:
                return
            if self._steps_left and self._isolate(self._alone):
                self._steps_left -= 1
                return
            self._alone = None
        is_wary = self._is_wary()
        while self._held and self._alone is None:
            suspect = self._held.popleft()
            try:
                self._scheduler.release(*suspect.name)
            except SchedulerError:
                continue  # It has ended meanwhile.
            if is_wary or not suspect.is_new:
                self._isolate(suspect)
                self._alone, self._steps_left, self._deaths_alone = suspect, suspect.num_steps - 1, 0

    def _hold(self, suspect: _Suspect) -> None:
        self._scheduler.hold(*suspect.name, HOLD)
        self._held.append(suspect)

    def _isolate(self, suspect: _Suspect) -> bool:
        """Whether it has not ended meanwhile."""
        try:
            self._scheduler.isolate(*suspect.name)
        except SchedulerError:
            return False
        return True
