"""A supervised process: a child that is started, configured, watched, and replaced when it dies.

Knows whether a successor helps and whether too many have died; not the child's role.
"""

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from pyllm.errors import EngineDeadError, GivenUpError, StartError
from pyllm.supervision.child_process import ChildProcess
from pyllm.supervision.parent_link import FINAL_EXIT_CODE
from pyllm.supervision.restarts import WINDOW, RestartBudget, restarted
from pyllm.supervision.spare import SPARE_DELAY, Spare
from pyllm.wire.messages import Restarts

# Deaths blamed on one request that cost no restart, for each allowed restart. Two of them fail the request, so they end
# with the harmful requests, except for a child that always blames a request, or a client that never fails one. Beyond
# this bound they cost a restart.
FREE_DEATHS = 10

# Gets the address that the previous child served; empty for the first.
Configure = Callable[[str], msgspec.Struct]
# Gets the reason for which a child is lost without a successor.
OnLost = Callable[[BaseException], None]

logger = logging.getLogger(__name__)


class ProcessLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a supervised child; times are in seconds. With `warm_spare` there is a spare process."""

    ready_timeout: float
    max_restarts: int
    warm_spare: bool = False
    spare_delay: float = SPARE_DELAY


class Supervised(Protocol):
    """A `SupervisedProcess`, or several that start and end together."""

    @property
    def children(self) -> Sequence[ChildProcess]:
        """The children that run."""

    def spawn(self) -> None:
        """Start what needs no event loop."""

    async def start(self, on_lost: OnLost) -> str:
        """Wait until it is ready; returns the address that it serves."""

    def stand_by(self) -> None:
        """Keep spares from now on."""

    def expect_end(self) -> None:
        """Accept from now on that a child ends with code 0."""

    def give_up(self, reason: str) -> None:
        """Tell the children that a process they need will not come back."""

    def kill(self) -> None:
        """Send SIGKILL to the children."""

    async def stop(self, grace: float) -> None:
        """Send SIGTERM, then SIGKILL after `grace` seconds."""


class SupervisedProcess:
    """`spawn` starts a child and `configure` makes its configuration; `on_death` is called with each dead child.

    `release` is called, maybe twice, when there will be no other child.

    A child has no successor if it ended for a reason that the successor would meet, too, or in order when that was
    expected. A death blamed on one request costs no restart, see `FREE_DEATHS`: such a request fails by itself.
    """

    def __init__(
        self,
        spawn: Callable[[], ChildProcess],
        configure: Configure,
        limits: ProcessLimits,
        on_death: Callable[[ChildProcess], None] = lambda process: None,
        clock: Callable[[], float] = time.monotonic,
        *,
        release: Callable[[], None] = lambda: None,
    ) -> None:
        self.process: ChildProcess | None = None
        self._spawn = spawn
        self._configure = configure
        self._limits = limits
        self._on_death = on_death
        self._release = release
        self._clock = clock
        self._budget = RestartBudget(limits.max_restarts)
        self._free_deaths = RestartBudget(FREE_DEATHS * limits.max_restarts)
        self._spare = Spare(spawn, limits.spare_delay)
        self._address = ""
        self._stands_by = False
        self._may_end = False
        self._is_ending = False
        self._keeping: asyncio.Task[EngineDeadError | None] | None = None
        self._restarts: Restarts | None = None

    @property
    def children(self) -> list[ChildProcess]:
        """The child, if there is one."""
        return [] if self.process is None else [self.process]

    @property
    def restarts(self) -> tuple[Restarts, ...]:
        """The restarts of the child, if it is not the first, and of its own children."""
        own = () if self._restarts is None else (self._restarts,)
        return own + (() if self.process is None else self.process.restarts)

    def spawn(self) -> None:
        """Start the first child without waiting for it; works without a running event loop."""
        self.process = self._spawn()
        self.process.configure(self._configure(""))

    async def start(self, on_lost: OnLost) -> str:
        """Wait until the first child is ready, and supervise it from then on; returns the address that it serves.

        `on_lost` is called once, with the reason, if a child is lost without a successor.

        Raises:
            StartError: the child did not become ready; it is not supervised.
        """
        if self.process is None:
            self.spawn()
        assert self.process is not None
        self.process.watch()
        self._address = await self.process.ready(self._limits.ready_timeout)
        if self._is_ending:  # It was asked to end while it reported that it is ready.
            return self._address
        self._keeping = asyncio.create_task(self._keep(self.process), name="keep process")
        self._keeping.add_done_callback(lambda keeping: _tell(keeping, on_lost))
        return self._address

    def stand_by(self) -> None:
        """Keep a spare from now on, if configured. Call it once all is ready, so that it does not slow the start."""
        self._stands_by = self._limits.warm_spare
        if self._stands_by:
            self._spare.fill()

    def expect_end(self) -> None:
        """Accept from now on that a child ends with code 0."""
        self._may_end = True

    def give_up(self, reason: str) -> None:
        """Tell the child that a process it needs will not come back."""
        if self.process is not None:
            self.process.give_up(reason)

    def kill(self) -> None:
        """Send SIGKILL to the child, the spare, and all that they have started; there is no successor."""
        self._end_keeping()
        self._spare.kill()
        if self.process is not None:
            self.process.kill()
        self._release()

    async def stop(self, grace: float) -> None:
        """Send SIGTERM, then SIGKILL after `grace` seconds; there is no successor."""
        self._end_keeping()
        await asyncio.gather(self._spare.close(), self._stop_child(grace))
        self._release()

    async def _stop_child(self, grace: float) -> None:
        process = self.process
        if process is None:
            return
        code = await process.stop(grace)
        if code is None:
            logger.error("%s could not be killed: it is left behind, while %s", process.name, process.stage)
        elif code not in (0, -signal.SIGTERM):
            logger.warning("%s: it did not shut down cleanly", process.exit_summary())

    async def _keep(self, process: ChildProcess) -> EngineDeadError | None:
        """Replace children until one has ended for good; returns the reason, or None for an expected end."""
        while True:
            await asyncio.wait({process.exited})
            if process.exited.result() == 0 and self._may_end:
                return None
            self._on_death(process)
            if process.exited.result() == FINAL_EXIT_CODE:
                return process.error()
            reason = process.exit_summary()
            process = self.process = await self._successor(process)
            self._restarts = restarted(self._restarts, process.pid, self._clock(), reason)
            process.configure(self._configure(self._address))
            await self._see_ready(process)

    async def _successor(self, dead: ChildProcess) -> ChildProcess:
        """Start another child, as often as the budget allows; a failed start costs a restart, too.

        Raises:
            GivenUpError: the budget is used up; the text has the last reason.
        """
        reason, delay = dead.exit_summary(), self._delay(dead)
        while delay is not None:
            logger.error("%s: another one takes its place", reason)
            await asyncio.sleep(delay)
            try:
                return self._spare.take()
            except OSError as error:
                reason, delay = f"{dead.name} could not be started: {error}", self._budget.take(self._clock())
        most = self._limits.max_restarts
        raise GivenUpError(f"{reason}; it is not started anew, max_restarts allows {most} times within {WINDOW:g} s")

    def _delay(self, dead: ChildProcess) -> float | None:
        """Seconds to wait before the successor, or None if there may be none."""
        now = self._clock()
        if dead.blamed_on_request and self._free_deaths.take(now) is not None:
            return 0.0
        return self._budget.take(now)

    async def _see_ready(self, process: ChildProcess) -> None:
        try:
            await process.ready(self._limits.ready_timeout)
        except StartError:
            if not process.exited.done():
                process.failure = f"it was not ready after {self._limits.ready_timeout:g} s"
                process.kill()
            return
        logger.info("%s is ready again", process.name)
        if self._stands_by:
            self._spare.fill()

    def _end_keeping(self) -> None:
        self._is_ending = True
        self._stands_by = False
        if self._keeping is not None:
            self._keeping.cancel()


def start_state(processes: Sequence[Supervised]) -> tuple[float, str]:
    """The share of the model that is loaded, and a text with the stages of children that are not ready."""
    children = [child for process in processes for child in process.children]
    # A child that waits for another one does not delay the start.
    busy = [child for child in children if child.stage != "ready" and not child.stage.startswith("waiting")]
    loaded = max((child.progress for child in children), default=0.0)
    return loaded, ", ".join(f"{child.name} is {child.stage}" for child in busy)


def _tell(keeping: "asyncio.Task[EngineDeadError | None]", on_lost: OnLost) -> None:
    if not keeping.cancelled() and (reason := keeping.exception() or keeping.result()) is not None:
        on_lost(reason)
