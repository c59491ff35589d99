"""A core whose ranks are killed at the step that a test names, and an API process, each a process of its own.

Everything but the hand that kills is the server's own code.
"""

import asyncio
import multiprocessing
import os
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import zmq

from benchmarks.engine import spawned_core
from benchmarks.frontend.api_process import HOST, api_process
from pyllm._rust import Plan
from pyllm.config.option_reading import engine_config
from pyllm.config.process_config import CoreConfig
from pyllm.core.executors.local_workers import SpawnedWorkers
from pyllm.core.executors.multiprocess import ProcessExecutor
from pyllm.launch.resolve import resolve_config
from pyllm.wire.messages import Sampled
from tests.e2e.titles import find

CONTEXT = multiprocessing.get_context("spawn")
MAX_KILLS = 1024


class Trigger:
    """Shared by the test and the core's process: how many plans until the kill, whom to kill, and when it was done."""

    def __init__(self) -> None:
        self._plans_left = CONTEXT.Value("q", -1)
        self._rank = CONTEXT.Value("q", 0)
        self._num_plans = CONTEXT.Value("q", 0)
        self._num_kills = CONTEXT.Value("q", 0)
        self._times = CONTEXT.Array("d", MAX_KILLS)

    def arm(self, plans: int, rank: int = 0) -> None:
        """Have a rank killed once the core has submitted so many more plans."""
        self._rank.value = rank
        self._plans_left.value = plans

    def disarm(self) -> None:
        """Kill nobody any more."""
        self._plans_left.value = -1

    @property
    def is_disarmed(self) -> bool:
        """Whether the last kill that was asked for was done."""
        return bool(self._plans_left.value < 0)

    @property
    def num_plans(self) -> int:
        """Plans that were submitted so far."""
        return int(self._num_plans.value)

    @property
    def kills(self) -> list[float]:
        """When each kill was done, by `time.monotonic`."""
        return list(self._times[: self._num_kills.value])

    def count(self) -> None:
        """In the core: one plan was submitted."""
        self._num_plans.value += 1
        with self._plans_left.get_lock():
            if self._plans_left.value < 0:
                return
            self._plans_left.value -= 1
            if self._plans_left.value > 0:
                return
            # Before it is disarmed: who waits for that looks at the times then.
            self._times[self._num_kills.value] = time.monotonic()
            self._num_kills.value += 1
            self._plans_left.value = -1
        for worker in find(os.getpid(), f"pyllm::worker-0-{self._rank.value}"):
            worker.kill()


class KillingExecutor(ProcessExecutor):
    """The real one; a rank dies as soon as its fatal plan is on its way."""

    def __init__(self, trigger: Trigger, config: CoreConfig, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        super().__init__(config, context, SpawnedWorkers(config))
        self._trigger = trigger

    def submit(self, plan: Plan, transfers: bytes = b"") -> asyncio.Future[Sampled]:
        answer = super().submit(plan, transfers)
        self._trigger.count()
        return answer


@asynccontextmanager
async def killing_server(trigger: Trigger, **options: Any) -> AsyncIterator[str]:
    """Such a core and an API process; gives the address."""
    with tempfile.TemporaryDirectory() as folder:
        engine, checkpoint = resolve_config(engine_config(options))
        config = CoreConfig(
            engine=engine,
            checkpoint=checkpoint,
            bind=f"ipc://{folder}/core-0",
            socket_folder=folder,
            ready_timeout=60.0,
            shutdown_timeout=10.0,
        )
        core = spawned_core.start(config, partial(KillingExecutor, trigger))
        try:
            await core.ready(60.0)
            async with api_process(config) as api:
                yield f"http://{HOST}:{api.port}"
        finally:
            await core.stop(10.0)
