"""Recovers a core whose workers died: new workers recompute all requests from their tokens.

Knows the executor and the scheduler; `core/faults/quarantine.py` decides which request is to blame. Knows no clients.
"""

import logging
from collections.abc import Awaitable, Callable

from pyllm._rust import Scheduler
from pyllm.core.executors.executor import Executor
from pyllm.core.executors.host_inventory import HostInventory
from pyllm.core.faults.crash import Crash
from pyllm.core.faults.quarantine import Quarantine, Verdict
from pyllm.core.kv.cache_sizes import CacheSizes
from pyllm.errors import EngineDeadError, GivenUpError, WorkerDeadError
from pyllm.supervision.restarts import WINDOW, RestartBudget

# Workers die often when more than a third of the allowed restarts is used up, and at least two.
_WARY_SHARE = 3

logger = logging.getLogger(__name__)


class Recovery:
    """Recovery of one core. `reason` says why there are no workers, and is empty while there are.

    `shrink` makes later steps take less memory, and returns whether that was possible. `connect` is called when new
    ranks have their KV caches, and `restore_adapters` after it, `restore_sleep` last. `inventory` tells
    the scheduler what host memory that outlives the workers still holds.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        budget: RestartBudget,
        *,
        shrink: Callable[[], bool],
        connect: Callable[[], Awaitable[None]],
        restore_adapters: Callable[[], Awaitable[None]],
        restore_sleep: Callable[[], Awaitable[None]],
        inventory: HostInventory,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self.reason = ""
        self._is_blamed_on_request = False
        self._last_fatal_step: int | None = None
        self._num_fruitless = 0  # deaths without a successful step in between
        self.num_recoveries = 0
        self.num_degradations = 0
        self.quarantine = Quarantine(scheduler, self._is_wary)
        self._scheduler = scheduler
        self._executor = executor
        self._budget = budget
        self._shrink = shrink
        self._connect = connect
        self._restore_adapters = restore_adapters
        self._restore_sleep = restore_sleep
        self._inventory = inventory
        self._clock = clock
        self._sleep = sleep

    def begin(self, crash: Crash) -> Verdict | None:
        """Drop the state of the dead ranks and judge the requests. Returns the request that must fail, if any."""
        death = crash.death
        self.reason = str(death)
        self._scheduler.lose_device()
        # The fork server computes nothing: no request is to blame for its end.
        requests = [] if death.cause == "orphaned" else crash.requests
        self._count(crash.steps)
        # A death by an identified request costs no restart of the budget. But if no step succeeds in between, the
        # workers may be to blame.
        may_blame = self._num_fruitless <= self._budget.max_restarts
        self._is_blamed_on_request = may_blame and self.quarantine.explains(requests)
        verdict = self.quarantine.accuse(death, crash.steps, requests)
        # A request that needs too much memory alone must fail: smaller steps would only slow the others.
        if death.cause == "out_of_memory" and verdict is None and self._shrink():
            self.num_degradations += 1
        return verdict

    async def end(self, death: WorkerDeadError) -> None:
        """Start new ranks, as often as the budget allows. A failure meanwhile costs one more restart.

        Raises:
            GivenUpError: the budget is used up; the text has the last failure.
        """
        failure: EngineDeadError = death
        began = self._clock()
        while True:
            logger.warning("%s; all requests wait for new workers", failure)
            blamed_on_request, self._is_blamed_on_request = self._is_blamed_on_request, False
            delay = 0.0 if blamed_on_request else self._budget.take(self._clock())
            if delay is None:
                most = self._budget.max_restarts
                text = f"the workers died more than {most} times within {WINDOW:.0f} s, which is max_restarts"
                raise GivenUpError(f"{text}; the last time: {failure}")
            if self._is_wary() and not blamed_on_request:
                logger.warning("workers die often: until that ends, each new request runs alone before it joins others")
            await self._sleep(delay)
            try:
                await self._executor.restart()
                await self._allocate()
                await self._connect()
                await self._restore_adapters()
                await self._inventory.restore()
                await self._restore_sleep()
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
        """Allocate as many blocks and states as the scheduler has, which never changes."""
        sizes = CacheSizes.of(self._scheduler)
        found = await self._executor.collective("num_blocks", sizes.num_states)
        fitting = [number for number in found if number is not None]
        if fitting and min(fitting) < sizes.num_blocks:
            logger.warning(
                "a new worker has room for %d KV blocks and must allocate %d", min(fitting), sizes.num_blocks
            )
        await self._executor.collective("allocate", *sizes)
