"""The state that outlives a core: settings, a pause, weights, adapters, reports of the last ended requests.

Each change is passed on at once, for the next core. Knows neither the keeper nor requests.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from pyllm._rust import Scheduler
from pyllm.wire.messages import Adapter
from pyllm.wire.supervision_messages import MAX_ENDED, Kept


class KeptState:
    """`earlier` is the state of the cores before; `keep` is called with each change."""

    def __init__(self, scheduler: Scheduler, earlier: Kept, keep: Callable[[Kept], object]) -> None:
        self._scheduler = scheduler
        self._keep = keep
        self.pause = earlier.pause or "none"
        self._settings = earlier.settings or {}
        self._ended_before = deque(earlier.ended)  # oldest first
        self._num_ended = 0  # in this core

    @property
    def settings(self) -> dict[str, Any]:
        """All settings changed by clients of this core and of those before."""
        return self._settings

    def change(self, changes: dict[str, Any]) -> None:
        """Keep settings that have changed."""
        self._settings = self._settings | changes
        self._keep(Kept(settings=self._settings))

    def pause_at(self, level: str) -> None:
        """Keep the scheduler's setting `pause`."""
        self.pause = level
        self._keep(Kept(pause=level))

    def use_weights(self, checkpoint: bytes) -> None:
        """Keep the description of the weights that the core computes with."""
        self._keep(Kept(weights=checkpoint))

    def serve(self, adapters: tuple[Adapter, ...]) -> None:
        """Keep the adapters that this core serves."""
        self._keep(Kept(adapters=adapters))

    def gather(self) -> list[dict[str, Any]]:
        """Keep and return reports of the requests that have ended since the last call."""
        if ended := self._scheduler.take_ended():
            self._num_ended += len(ended)
            while self._ended_before and len(self._ended_before) + self._num_ended > MAX_ENDED:
                self._ended_before.popleft()
            self._keep(Kept(ended=tuple(ended)))
        return ended

    def ended_before(self, name: str | None) -> list[dict[str, Any]]:
        """Reports of requests that ended in earlier cores, latest first; with a `name` only of requests with this name.

        Together with those of this core they are at most 1,000.
        """
        return [dict(report) for report in reversed(self._ended_before) if name is None or report["name"] == name]
