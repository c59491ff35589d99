"""The executor without processes: one rank, on one thread of the core's own process.

Does not import the worker: it is handed a factory, so that the core stays free of torch.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from pyllm._rust import Plan
from pyllm.errors import EngineDeadError, StartError
from pyllm.messages import Sampled, Step


class Rank(Protocol):
    """What a worker offers in process: a `ModelRunner` that is already loaded, or a fake."""

    def run(self, step: Step, frame: memoryview) -> Sampled:
        """Execute one plan."""

    def call(self, method: str, args: tuple[Any, ...]) -> Any:
        """Answer a `Control`."""


class InlineExecutor:
    """Runs the model on a thread, so that the event loop still answers while a long chunk is computed."""

    def __init__(self, load: Callable[[], Rank]) -> None:
        self._load = load
        self._rank: Rank | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="model")

    async def start(self) -> None:
        try:
            self._rank = await asyncio.get_running_loop().run_in_executor(self._thread, self._load)
        except Exception as error:
            raise StartError(f"the model could not be loaded: {error}") from error

    def submit(self, plan: Plan) -> asyncio.Future[Sampled]:
        return asyncio.get_running_loop().run_in_executor(self._thread, self._run, plan)

    async def collective(self, method: str, *args: Any) -> list[Any]:
        assert self._rank is not None, "collective before start"
        try:
            result = await asyncio.get_running_loop().run_in_executor(self._thread, self._rank.call, method, args)
        except Exception as error:
            raise EngineDeadError(f"{method} failed: {error}") from error
        return [result]

    async def close(self) -> None:
        await asyncio.to_thread(self._thread.shutdown, wait=True, cancel_futures=True)
        self._rank = None

    def _run(self, plan: Plan) -> Sampled:
        assert self._rank is not None, "submit before start"
        try:
            return self._rank.run(Step(plan.step, tuple(plan.counts)), memoryview(plan))
        except Exception as error:
            raise EngineDeadError(f"step {plan.step} failed: {error}") from error
