"""One profile of ranks at a time: begins on all chosen ranks at the same step, ends after some steps or seconds.

Knows no ops: passes on the recordings of the ranks.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from pyllm.core.executors.executor import Executor
from pyllm.errors import EngineDeadError
from pyllm.wire.ipc import MAX_MESSAGE_BYTES
from pyllm.wire.profiles import ProfileOutcome, RankProfile

MAX_EVENT_BYTES = MAX_MESSAGE_BYTES * 3 // 4  # of all ranks in one answer

logger = logging.getLogger(__name__)


class Profiling:
    """Makes the profiles of one core. While `is_running`, call `committed` after each step.

    `num_in_flight` returns the number of steps that the ranks have not answered, `clock` seconds, and `unix_time`
    nanoseconds.
    """

    def __init__(
        self,
        executor: Executor,
        num_in_flight: Callable[[], int],
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        unix_time: Callable[[], int] = time.time_ns,
    ) -> None:
        self._executor = executor
        self._num_in_flight = num_in_flight
        self._clock = clock
        self._sleep = sleep
        self._unix_time = unix_time
        self._began = 0.0
        self._num_left = 0  # steps until the recording is complete
        self._ended: asyncio.Future[str] | None = None  # of the one that runs: the reason of its interruption, or ""

    @property
    def is_running(self) -> bool:
        """Whether there is a profile to count steps for."""
        return self._ended is not None

    async def record(self, num_steps: int, seconds: float, ranks: Sequence[int], *, with_trace: bool) -> ProfileOutcome:
        """Record the next steps on some ranks; after `seconds` return those so far.

        The death of a rank ends the profile, and the recordings of the others are lost.
        """
        if self.is_running:
            text = f"a profile has been running for {self._clock() - self._began:.1f} s: wait for its end"
            return ProfileOutcome("running", reason=text)
        self._began = self._clock()
        self._ended = ended = asyncio.get_running_loop().create_future()
        try:
            await self._start(num_steps, ranks)
            logger.info("recording the next %d steps on ranks %s, for %g s at most", num_steps, list(ranks), seconds)
            sleeping = asyncio.ensure_future(self._sleep(seconds))
            try:
                await asyncio.wait((ended, sleeping), return_when=asyncio.FIRST_COMPLETED)
            finally:
                sleeping.cancel()
            if ended.done() and (reason := ended.result()):
                raise EngineDeadError(reason)
            by_steps = ended.done()
            answers = await self._executor.collective("stop_profile", with_trace)
        except EngineDeadError as error:
            return ProfileOutcome("interrupted", self._clock() - self._began, str(error))
        finally:
            self._ended = None
        profiles = [msgspec.convert(answer, RankProfile) for answer in answers if answer is not None]
        fitting = _fitting(MAX_EVENT_BYTES, profiles)
        return ProfileOutcome("steps" if by_steps else "seconds", self._clock() - self._began, ranks=fitting)

    def committed(self) -> None:
        """Count a committed step."""
        self._num_left -= 1
        if self._num_left == 0:
            self._end("")

    def interrupt(self, reason: str) -> None:
        """Interrupt the profile, as the ranks were lost."""
        self._end(reason)

    def _end(self, reason: str) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(reason)

    async def _start(self, num_steps: int, ranks: Sequence[int]) -> None:
        """Begin after the steps in flight, which the ranks compute before they read this call."""
        self._num_left = self._num_in_flight() + num_steps
        try:
            await self._executor.collective("start_profile", num_steps, self._unix_time(), list(ranks))
        except EngineDeadError:
            if self._executor.death is None:  # A rank refused, but others have begun.
                await self._executor.collective("stop_profile", False)
            raise


def _fitting(num_bytes: int, ranks: list[RankProfile]) -> list[RankProfile]:
    """The profiles; traces that do not fit are dropped."""
    kept = []
    for rank in ranks:
        num_bytes -= len(rank.events)
        kept.append(rank if num_bytes >= 0 else msgspec.structs.replace(rank, events=b""))
    return kept
