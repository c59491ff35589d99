"""How a core goes on when its workers die: others are started, which compute all requests anew from their tokens.

Knows the executor and what a scheduler loses with a device; `quarantine.py` judges who is to blame. Knows no clients.
"""

import logging
from collections.abc import Awaitable, Callable

from pyllm._rust import Scheduler
from pyllm.core.crash import Crash
from pyllm.core.executors.base import Executor
from pyllm.core.quarantine import Quarantine, Verdict
from pyllm.errors import EngineDeadError, GivenUpError, WorkerDeadError
from pyllm.restart_budget import WINDOW, RestartBudget

# Workers die often where more than one of so many of the restarts that are allowed is used up; a first one is nothing.
_WARY_SHARE = 3

logger = logging.getLogger(__name__)


class Recovery:
    """`reason` says why there are no workers, and is empty while there are.

    `shrink` has later steps take less memory, and says whether that was possible.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        budget: RestartBudget,
        *,
        shrink: Callable[[], bool],
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self.reason = ""
        self._is_explained = False
        self._last_fatal_step: int | None = None
        self._num_fruitless = 0  # deaths without a step in between that ended well
        self.num_recoveries = 0
        self.num_degradations = 0
        self.quarantine = Quarantine(scheduler, self._is_wary)
        self._scheduler = scheduler
        self._executor = executor
        self._budget = budget
        self._shrink = shrink
        self._clock = clock
        self._sleep = sleep

    def begin(self, crash: Crash) -> Verdict | None:
        """Forget all that the ranks held, and what they were computing. Gives a request that is to end for it."""
        death = crash.death
        self.reason = str(death)
        self._scheduler.lose_device()
        # What workers are forked from computes nothing: no request is to blame for its end.
        requests = [] if death.cause == "orphaned" else crash.requests
        self._count(crash.steps)
        # A request that is found out costs nobody's budget: however many there are, each fails by itself. Not so where
        # nothing else is computed in between: then it may be the workers.
        may_be_explained = self._num_fruitless <= self._budget.max_restarts
        self._is_explained = may_be_explained and self.quarantine.explains(requests)
        verdict = self.quarantine.accuse(death, crash.steps, requests)
        # What takes too much memory all by itself would take it of others' steps alone.
        if death.cause == "out_of_memory" and verdict is None and self._shrink():
            self.num_degradations += 1
        return verdict

    async def end(self, death: WorkerDeadError) -> None:
        """Have new ranks, as often as the budget allows. What goes wrong meanwhile is one more failure of them.

        Raises:
            GivenUpError: the budget is used up; the text has the last failure.
        """
        failure: EngineDeadError = death
        began = self._clock()
        while True:
            logger.warning("%s; all requests wait for new workers", failure)
            is_explained, self._is_explained = self._is_explained, False
            delay = 0.0 if is_explained else self._budget.take(self._clock())
            if delay is None:
                most = self._budget.max_restarts
                text = f"the workers died more than {most} times within {WINDOW:.0f} s, which is max_restarts"
                raise GivenUpError(f"{text}; the last time: {failure}")
            if self._is_wary() and not is_explained:
                logger.warning("workers die often: while they do, what comes is tried alone before it runs with others")
            await self._sleep(delay)
            try:
                await self._executor.restart()
                await self._allocate()
            except EngineDeadError as error:
                failure = error
                self.reason = str(error)
            else:
                break
        self.num_recoveries += 1
        self.reason = ""
        logger.info("new workers took over after %.2f s", self._clock() - began)

    def _is_wary(self) -> bool:
        return self._budget.num_taken(self._clock()) > max(1, self._budget.max_restarts // _WARY_SHARE)

    def _count(self, steps: list[int]) -> None:
        if steps:
            is_fruitless = self._last_fatal_step is not None and steps[0] == self._last_fatal_step + 1
            self._num_fruitless = self._num_fruitless + 1 if is_fruitless else 0
            self._last_fatal_step = steps[-1]

    async def _allocate(self) -> None:
        """As many blocks as the scheduler has, which does not change while it lives."""
        stats = self._scheduler.stats()
        num_blocks, num_host_blocks = stats["num_blocks"], stats["num_host_blocks"]
        room = min(await self._executor.collective("num_blocks"))
        if room < num_blocks:
            logger.warning("a new worker has room for %d KV blocks and is to allocate %d", room, num_blocks)
        await self._executor.collective("allocate", num_blocks, num_host_blocks)
