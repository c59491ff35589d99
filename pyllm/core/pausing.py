"""Pauses the scheduler of a core, for clients or a change of the weights: running requests end, are aborted, or wait.

Requests that come meanwhile wait in the queue. Knows neither weights nor memory.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import get_args

from pyllm._rust import Scheduler
from pyllm.core.kept_state import KeptState
from pyllm.errors import RequestError
from pyllm.wire.messages import PauseMode

PAUSE_MODES = get_args(PauseMode)
REASON = "the engine is paused: requests wait until it is resumed"
_LEVELS = ("none", "new", "all")  # of the scheduler's setting `pause`


class Pausing:
    """A pause outlives the core: `kept` has that of the core before, and passes on each change.

    `num_in_flight` is the number of steps in flight, `abort` ends a request, `announce` is called after each change,
    and `wake` when the core has to look again.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        kept: KeptState,
        *,
        num_in_flight: Callable[[], int],
        abort: Callable[[int, int], object],
        announce: Callable[[], object],
        wake: Callable[[], object],
    ) -> None:
        self._scheduler = scheduler
        self._kept = kept
        self._num_in_flight = num_in_flight
        self._abort = abort
        self._announce = announce
        self._wake = wake
        self._waiting: list[asyncio.Future[None]] = []
        self._level = "none"  # of clients
        self._held = "none"  # for a change of the weights
        self._holding: list[asyncio.Future[None]] = []
        if kept.pause != "none":
            self._set(kept.pause)

    @property
    def is_paused(self) -> bool:
        """Whether requests are kept from running; with "wait" from the start on, while others end."""
        return self._level != "none"

    @property
    def reason(self) -> str:
        """The reason why requests wait; empty while the scheduler runs."""
        return REASON if self.is_paused else ""

    def pause(self, mode: PauseMode) -> Awaitable[None]:
        """Pause from the next plan on. The result is there when nothing runs any more.

        It raises RequestError if the scheduler was resumed meanwhile.
        """
        # A pause that began with "keep" has frozen requests, which "wait" lets end.
        self._change("new" if mode == "wait" else "all")
        return self._settling(self._waiting, self._scheduler.live_requests() if mode == "abort" else ())

    @property
    def is_frozen(self) -> bool:
        """Whether requests that have begun are kept from going on by a client's pause."""
        return self._level == "all" and self._scheduler.num_begun() > 0

    async def hold(self, mode: PauseMode) -> None:
        """Stop the scheduler until `release`, whatever clients do; return when nothing runs.

        With "abort" requests that have begun end.
        """
        self._held = "new" if mode == "wait" else "all"
        self._apply()
        await self._settling(self._holding, self._scheduler.begun_requests() if mode == "abort" else ())

    def release(self) -> None:
        """End a hold."""
        self._held = "none"
        self._apply()
        self._wake()

    def resume(self) -> None:
        """Let all requests run; without a pause nothing changes."""
        if self.is_paused:
            self._change("none")
            self._settle(RequestError("the engine was resumed before all requests had ended"))
            self._wake()

    def advance(self) -> None:
        """Note the end of running requests; call it before each plan, and when there is none."""
        if not (self.is_paused or self._holding) or self._num_in_flight():
            return
        has_ended = not self._scheduler.num_begun()
        if self._holding and (self._held == "all" or has_ended):
            self._held = "all"
            self._apply()
            for each in self._holding:
                if not each.done():
                    each.set_result(None)
            self._holding.clear()
        if self._level == "new" and has_ended:
            self._change("all")
        if self._level == "all":
            self._settle(None)

    def _settling(
        self, waiting: "list[asyncio.Future[None]]", aborted: Iterable[tuple[int, int]]
    ) -> "asyncio.Future[None]":
        """Abort these requests, and add a future to `waiting`, which has its result when nothing runs any more."""
        for client, request in aborted:
            self._abort(client, request)
        settling: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(settling)
        self._wake()
        return settling

    def _change(self, level: str) -> None:
        self._set(level)
        self._kept.pause_at(level)
        self._announce()

    def _set(self, level: str) -> None:
        self._level = level
        self._apply()

    def _apply(self) -> None:
        self._scheduler.reconfigure(pause=max(self._level, self._held, key=_LEVELS.index))

    def _settle(self, error: RequestError | None) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if each.done():
                continue
            if error is None:
                each.set_result(None)
            else:
                each.set_exception(error)
