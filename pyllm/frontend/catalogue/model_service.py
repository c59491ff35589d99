"""One loaded model in the API process of a catalogue, from loading to unloading. Knows no other model."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from pyllm.frontend.http.asgi import ASGIApp
from pyllm.frontend.requests.server_state import ServerState

logger = logging.getLogger(__name__)


class ModelService:
    """The state and the routes of one model. `look` is called twice a second; `background` runs until `close`.

    `trouble` gives the reason why the model generates nothing, or an empty text.
    """

    def __init__(
        self,
        state: ServerState,
        app: ASGIApp,
        paths: Sequence[str],
        *,
        look: Callable[[], None] = lambda: None,
        trouble: Callable[[], Awaitable[str]] | None = None,
        background: Sequence[Coroutine[Any, Any, None]] = (),
    ) -> None:
        self.state = state
        self.app = app
        self.paths = paths
        self._look = look
        self._trouble = trouble
        self._tasks = [asyncio.ensure_future(work) for work in background]
        for task in self._tasks:
            task.add_done_callback(_report)

    async def trouble(self) -> str:
        """The reason why it generates nothing; empty if it does."""
        return "" if self._trouble is None else await self._trouble()

    def beat(self) -> None:
        """Report the counts of its requests, and log refusals."""
        self._look()
        self.state.shared.beat(self.state.metrics.counted())

    def close(self) -> None:
        """End the background work, and disconnect. No request of it may run."""
        for task in self._tasks:
            task.cancel()
        self.state.client.close()
        self.state.answer_thread.shutdown(wait=False)
        if self.state.tracer is not None:
            self.state.tracer.close()


def _report(task: "asyncio.Future[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("the background work of a model has failed", exc_info=error)
