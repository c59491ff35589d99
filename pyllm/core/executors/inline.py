"""The executor without processes: one rank, on one thread of the core's own process.

Does not import the worker: its caller passes a factory, so that the core stays free of torch.
"""

import asyncio
import gc
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from pyllm._rust import Plan
from pyllm.checkpoint.types import Checkpoint
from pyllm.core.executors.model_thread import ModelThread, Pending
from pyllm.errors import Cause, EngineDeadError, StartError, WorkerDeadError
from pyllm.supervision.process_memory import is_out_of_memory
from pyllm.wire.messages import Sampled, Step

# Seconds to wait for the old rank's thread. If it hangs, the next rank's memory comes on top of its own.
_END_SECONDS = 1.0


class Rank(Protocol):
    """A worker in this process: a loaded `ModelRunner`, or a fake."""

    def begin(self, step: Step, frame: memoryview) -> Pending:
        """Start a step. On a GPU, the next step may begin before this one is answered."""

    def call(self, method: str, args: tuple[Any, ...]) -> Any:
        """Answer a `Control`."""


class InlineExecutor:
    """Runs the model on a thread, so that the event loop still answers during a long step.

    A GPU gets a step while it computes the one before.

    A step that raises counts as the rank's death, as its memory may be half written. A thread cannot be killed: if its
    step never ends, its model's memory stays in use beside that of the next.

    `load` makes the rank, and `load_version` one with other weights.
    """

    def __init__(self, load: Callable[[], Rank], load_version: Callable[[Checkpoint], Rank] | None = None) -> None:
        self._load = load
        self._load_version = load_version
        self._rank: Rank | None = None
        self._thread = ModelThread()
        self._running: list[asyncio.Future[Sampled]] = []
        self._death: WorkerDeadError | None = None

    @property
    def death(self) -> WorkerDeadError | None:
        return self._death

    async def start(self) -> None:
        try:
            self._rank = await asyncio.wrap_future(self._thread.call(self._load))
        except Exception as error:
            raise StartError(f"the model could not be loaded: {error}") from error

    def submit(self, plan: Plan, transfers: bytes = b"") -> asyncio.Future[Sampled]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Sampled] = loop.create_future()
        if self._death is not None:
            answer.set_exception(self._death)
            return answer
        assert self._rank is not None, "submit before start"
        self._running.append(answer)
        begin = partial(self._rank.begin, Step(plan.step, tuple(plan.counts), transfers), memoryview(plan))
        step = asyncio.wrap_future(self._thread.step(begin))
        step.add_done_callback(lambda step: self._end(plan.step, step, answer))
        return answer

    def kill(self, cause: Cause) -> None:
        self._die(WorkerDeadError(f"the model's thread was given up as {cause}", cause))

    async def restart(self) -> None:
        self._die(WorkerDeadError("the model's thread was ended", "killed"))
        self._end_thread()
        await asyncio.to_thread(self._thread.join, _END_SECONDS)
        # Free the old model's memory before the new one takes its own: the model has reference cycles, and the core
        # has frozen its objects.
        gc.unfreeze()
        gc.collect()
        self._thread = ModelThread()
        await self.start()
        self._death = None

    async def collective(self, method: str, *args: Any) -> list[Any]:
        if self._death is not None:
            raise self._death
        assert self._rank is not None, "collective before start"
        try:
            result = await asyncio.wrap_future(self._thread.call(partial(self._rank.call, method, args)))
        except Exception as error:
            raise EngineDeadError(f"{method} failed: {error}") from error
        return [result]

    def use_weights(self, checkpoint: Checkpoint) -> None:
        assert self._load_version is not None, "this executor has one version of the weights"
        self._load = partial(self._load_version, checkpoint)

    async def close(self) -> None:
        self._end_thread()
        await asyncio.to_thread(self._thread.join)

    def _end_thread(self) -> None:
        rank, self._rank = self._rank, None
        # A process closes its files as it ends; a thread does not.
        self._thread.end(None if rank is None else partial(rank.call, "finish_transfers", ()))

    def _end(self, number: int, step: "asyncio.Future[Sampled]", answer: asyncio.Future[Sampled]) -> None:
        """Pass a step's answer on, unless the rank was given up meanwhile."""
        if step.cancelled():
            return
        error = step.exception()  # Always read: asyncio logs unread exceptions.
        if answer.done():
            return
        if error is None:
            self._running.remove(answer)
            answer.set_result(step.result())
        else:
            cause: Cause = "out_of_memory" if is_out_of_memory(error) else "crashed"
            log = "".join(traceback.format_exception(error)).encode()
            self._die(WorkerDeadError(f"step {number} failed: {error}", cause, log))

    def _die(self, death: WorkerDeadError) -> None:
        if self._death is not None:
            return
        self._death = death
        for answer in self._running:
            if not answer.done():
                answer.set_exception(death)
        self._running.clear()
