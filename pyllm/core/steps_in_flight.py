"""The steps that are submitted and not yet committed: keeps their order, times and traces them, detects stalls.

Knows neither the computation of a step nor the recovery after a loss.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from mmap import mmap
from typing import NamedTuple

from pyllm._rust import Plan, Scheduler
from pyllm.core.executors.executor import Executor
from pyllm.core.faults.stalls import StallWatch
from pyllm.supervision.step_trace import StepTrace
from pyllm.wire.messages import Sampled


class StepsInFlight:
    """The steps in flight. `memory` outlives this process and holds a trace of the last steps; see `StepTrace`.

    `token_seconds` is the measured upper bound per token, 0 if none was measured.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        *,
        clock: Callable[[], float],
        memory: mmap | bytearray,
        epoch: int,
        token_seconds: float,
    ) -> None:
        self.last_step = -1  # the last committed step
        self._scheduler = scheduler
        self._executor = executor
        self._clock = clock
        self._trace = StepTrace(memory, epoch)
        self._stalls = StallWatch()
        self._token_seconds = token_seconds
        self._steps: deque[_Step] = deque()
        self._last_answer = 0.0  # time by the clock

    def __len__(self) -> int:
        return len(self._steps)

    def submit(self, plan: Plan, transfers: bytes = b"") -> None:
        """Submit a plan to the executor, with the KV connector's metadata for the ranks, without waiting for it."""
        self._scheduler.note_step(plan, self._trace.note(plan.step))
        self._steps.append(_Step(plan.step, plan.num_tokens, self._clock(), self._executor.submit(plan, transfers)))

    async def wait_oldest(self) -> tuple[int, Sampled, float]:
        """Wait for the oldest step; returns its number, its samples and its duration in seconds.

        Raises:
            WorkerDeadError: the workers died; all steps stay in flight until `lose`.
        """
        step = self._steps[0]
        sampled = await step.answer
        self._steps.popleft()
        answered = self._clock()
        seconds = answered - max(step.submitted, self._last_answer)
        self._last_answer = answered
        return step.number, sampled, seconds

    def committed(self, step: int) -> None:
        """Note that the scheduler has a step's tokens."""
        self._trace.end(step)
        self.last_step = step

    def drop(self, step: int) -> None:
        """Note that the scheduler does not get a step's tokens."""
        self._trace.end(step)

    def lose(self) -> list[int]:
        """Forget all steps, as their workers are gone; returns their numbers, the oldest first."""
        numbers = [step.number for step in self._steps]
        for step in self._steps:
            _forget(step.answer)
        if numbers:
            self._trace.end(numbers[-1])
        self._steps.clear()
        self._stalls.rest()
        return numbers

    def watch(self, now: float) -> None:
        """Check the oldest step for a stall; kill the workers if they are stuck in it."""
        if not self._steps:
            self._stalls.rest()
            return
        step = self._steps[0]
        was_hopeless = self._stalls.is_hopeless
        most = self._token_seconds * step.num_tokens if self._token_seconds else None
        self._stalls.look(now, step.number, self._scheduler.expected_seconds(step.number), most)
        if self._stalls.is_hopeless and not was_hopeless:
            self._executor.kill("stalled")

    @property
    def stall(self) -> str:
        """The reason why the oldest step counts as stalled, or an empty string."""
        return self._stalls.reason if self._stalls.is_stalled else ""


class _Step(NamedTuple):
    number: int
    num_tokens: int
    submitted: float  # time by the clock
    answer: Awaitable[Sampled]


def _forget(answer: Awaitable[Sampled]) -> None:
    """Drop an answer that is not awaited, so that asyncio does not log its exception."""
    future = asyncio.ensure_future(answer)
    if not future.cancel() and not future.cancelled():
        future.exception()
