"""How a core goes on when its workers die: others are started, which compute all requests anew from their tokens.

Knows the executor and what a scheduler loses with a device; `quarantine.py` judges who is to blame. Knows no clients.
"""

import logging
from array import array
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec

from pyllm._rust import Scheduler
from pyllm.config import EngineConfig
from pyllm.core.executors.base import Executor
from pyllm.core.quarantine import Quarantine, Verdict
from pyllm.errors import EngineDeadError, GivenUpError, WorkerDeadError
from pyllm.flight_recorder import config_json
from pyllm.restart_budget import WINDOW, RestartBudget

NUM_DECISIONS = 64  # that a report has

logger = logging.getLogger(__name__)


class Crash(NamedTuple):
    """What was going on when the workers died."""

    death: WorkerDeadError
    epoch: int
    steps: list[int]  # in flight, oldest first
    requests: list[tuple[int, int]]  # that had rows in them: client and request


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
        self.num_recoveries = 0
        self.num_degradations = 0
        self.quarantine = Quarantine(scheduler)
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
        verdict = self.quarantine.accuse(death, crash.steps[0] if crash.steps else -1, crash.requests)
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
            delay = self._budget.take(self._clock())
            if delay is None:
                most = self._budget.max_restarts
                text = f"the workers died more than {most} times within {WINDOW:.0f} s, which is max_restarts"
                raise GivenUpError(f"{text}; the last time: {failure}")
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

    async def _allocate(self) -> None:
        """As many blocks as the scheduler has, which does not change while it lives."""
        stats = self._scheduler.stats()
        num_blocks, num_host_blocks = stats["num_blocks"], stats["num_host_blocks"]
        room = min(await self._executor.collective("num_blocks"))
        if room < num_blocks:
            logger.warning("a new worker has room for %d KV blocks and is to allocate %d", room, num_blocks)
        await self._executor.collective("allocate", num_blocks, num_host_blocks)


def crash_report(crash: Crash, scheduler: Scheduler, stats: dict[str, int], config: EngineConfig) -> dict[str, bytes]:
    """What is kept of it: contents by file names, without tokens unless the configuration asks for them."""
    names = [{"client": client, "request": request} for client, request in crash.requests]
    samples = [scheduler.explain(client, request) for client, request in crash.requests]
    report = {
        "cause": crash.death.cause,
        "death": str(crash.death),
        "epoch": crash.epoch,
        "steps_in_flight": crash.steps,
        "suspects": [name | {"samples": of} for name, of in zip(names, samples, strict=True)],
        "decisions": scheduler.decisions(NUM_DECISIONS),
        "stats": stats,
    }
    parts = {
        "report.json": msgspec.json.format(msgspec.json.encode(report)),
        "config.json": config_json(config),
        "worker.log": crash.death.log,
    }
    if config.recovery.flight_recorder_prompts:
        tokens = [name | _tokens(scheduler, *of) for name, of in zip(names, crash.requests, strict=True)]
        parts["tokens.json"] = msgspec.json.encode(tokens)
    return parts


def _tokens(scheduler: Scheduler, client: int, request: int) -> dict[str, object]:
    prompt, outputs = scheduler.history(client, request)
    return {"prompt": list(array("i", prompt)), "outputs": [list(array("i", output)) for output in outputs]}
