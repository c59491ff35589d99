"""The quarantine: requests that may crash workers run alone until they are cleared.

A request is suspect if it had rows in a fatal step, if several cores died while they had it, or if it arrives while
workers die often. Knows the scheduler only, neither clients nor recovery.
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from pyllm._rust import Scheduler, SchedulerError
from pyllm.errors import Cause, WorkerDeadError, blame
from pyllm.wire.messages import CLEARING_TOKENS, LOSSES_TO_RUN_ALONE

HOLD = "quarantine"
# Deaths of workers that computed only one request, after which it fails. Signals and silence may be the fault of the
# machine, so they need two.
_DEATHS_ALONE: dict[Cause, int] = {"killed": 2, "silent": 2, "crashed": 1, "stalled": 1, "out_of_memory": 1}

logger = logging.getLogger(__name__)


class RequestKey(NamedTuple):
    """Identifies a request in the scheduler."""

    client: int
    request: int


class Verdict(NamedTuple):
    """A request that must fail, and the reason for its client."""

    key: RequestKey
    reason: str


class _Suspect(NamedTuple):
    key: RequestKey
    cause: Cause | None  # of the workers' death that made it suspect; None: no such death
    num_steps: int  # that it has to survive alone
    is_new: bool = False  # whether it is suspect only because it arrived while workers died often

    def deaths_alone(self, cause: Cause) -> int:
        """The number of deaths alone, of this cause, at which it fails.

        A first death is forgiven, and so is one out of memory before steps were made smaller.
        """
        is_first = self.cause is None or (cause == "out_of_memory" and self.cause != cause)
        return _DEATHS_ALONE[cause] + is_first

    def deaths(self, deaths_alone: int) -> int:
        """All deaths that it caused, given those that it caused alone."""
        return deaths_alone + (self.cause is not None)


class Quarantine:
    """Empty in ordinary times. While it is not, plan no step ahead, so that each death has one step to blame.

    `is_wary()` says whether workers die often, perhaps by requests that clients send again and again. While they do,
    each new request runs alone before it may join the others, and all suspects run alone for longer.
    """

    def __init__(self, scheduler: Scheduler, is_wary: Callable[[], bool]) -> None:
        self.num_failures = 0
        self._scheduler = scheduler
        self._is_wary = is_wary
        self._held: deque[_Suspect] = deque()
        self._alone: _Suspect | None = None
        self._steps_left = 0  # of the one alone, after its current step
        self._deaths_alone = 0

    def __len__(self) -> int:
        return len(self._held) + (self._alone is not None)

    @property
    def alone(self) -> RequestKey | None:
        """The request that runs alone."""
        return None if self._alone is None else self._alone.key

    @property
    def is_next_due(self) -> bool:
        """Whether there are suspects, and none of them runs alone."""
        return len(self) > 0 and self._scheduler.isolated() is None

    def explains(self, requests: list[tuple[int, int]]) -> bool:
        """Whether a death in a step with these requests is the fault of the one that runs alone."""
        return self._alone is not None and requests == [self._alone.key]

    def accuse(self, death: WorkerDeadError, steps: list[int], requests: list[tuple[int, int]]) -> Verdict | None:
        """Hold the requests that had rows in the fatal step, which is the first of `steps` or one planned ahead of it.

        If it is clear which request it was, no other is held. Call it when the scheduler has lost the device. Returns
        the request that must fail.
        """
        keys = [RequestKey(*request) for request in requests]
        alone = self._alone
        if alone is not None and self.explains(requests):
            self._deaths_alone += 1
            if self._deaths_alone < alone.deaths_alone(death.cause):
                # It stays isolated and is tried again, for all the steps that it has to survive.
                self._alone = alone._replace(num_steps=max(alone.num_steps, CLEARING_TOKENS))
                self._steps_left = self._alone.num_steps - 1
                return None
            times = alone.deaths(self._deaths_alone)
            verdict = Verdict(alone.key, f"{blame('worker', times, self._deaths_alone)}: {death}, in step {steps[0]}")
            logger.error("client %d's request %d fails: %s", *verdict.key, verdict.reason)
            self._alone = None
            self.num_failures += 1
            return verdict
        if alone is not None:
            self._steps_left = alone.num_steps - 1  # New workers start its count anew.
        # A request that crashes workers again and again may take some tokens each time.
        num_steps = CLEARING_TOKENS if self._is_wary() else len(steps)
        for key in keys:
            if alone is None or key != alone.key:
                self._hold(_Suspect(key, death.cause, num_steps))
        if keys:
            names = ", ".join(f"{key.client}/{key.request}" for key in keys)
            logger.warning("requests (client/request) of the fatal step now run one by one: %s", names)
        return None

    def admit(self, key: RequestKey, num_losses: int) -> None:
        """Hold a new request if too many cores were lost while they had it, or if workers die often."""
        if num_losses >= LOSSES_TO_RUN_ALONE:
            # Most requests that crash a core do so at once. If another core was lost later, it may take some tokens.
            num_steps = 1 if num_losses == LOSSES_TO_RUN_ALONE else CLEARING_TOKENS
            self._hold(_Suspect(key, None, num_steps))
            logger.warning("client %d's request %d runs alone: %d cores were lost with it", *key, num_losses)
        elif self._is_wary():
            self._hold(_Suspect(key, None, CLEARING_TOKENS, is_new=True))

    def advance(self) -> None:
        """Run the next suspect alone if the one before is cleared or has ended; call it before each plan."""
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
                self._scheduler.release(*suspect.key, HOLD)
            except SchedulerError:
                continue  # It has ended.
            if is_wary or not suspect.is_new:
                self._isolate(suspect)
                self._alone, self._steps_left, self._deaths_alone = suspect, suspect.num_steps - 1, 0

    def _hold(self, suspect: _Suspect) -> None:
        self._scheduler.hold(*suspect.key, HOLD)
        self._held.append(suspect)

    def _isolate(self, suspect: _Suspect) -> bool:
        """Have it run alone; False if it has ended meanwhile."""
        try:
            self._scheduler.isolate(*suspect.key)
        except SchedulerError:
            return False
        return True
