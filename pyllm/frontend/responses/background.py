"""Computes a response without a reader. It ends by itself, or when its record is cancelled or deleted."""

import asyncio
from functools import partial

from pyllm.client.logprobs import LogprobEntries, are_packed
from pyllm.errors import PyllmError
from pyllm.frontend.http.failure import describe
from pyllm.frontend.requests.generation import Generation
from pyllm.frontend.responses.answer_format import ResponsesFormat
from pyllm.frontend.responses.protocol import Response
from pyllm.frontend.responses.response_store import ResponseStore
from pyllm.frontend.text.detokenizer import TextDelta

# Seconds between looks at the stored record, by which another API process ends the run.
WATCH_INTERVAL = 1.0


class BackgroundRun:
    """The sink of a generation. `answer_format` stores the response at the end."""

    def __init__(
        self,
        generation: Generation,
        answer_format: ResponsesFormat,
        store: ResponseStore,
        owner: str,
        *,
        watch_interval: float = WATCH_INTERVAL,
    ) -> None:
        self._generation = generation
        self._answer_format = answer_format
        self._store = store
        self._owner = owner
        self._watch_interval = watch_interval
        self._num_on_thread = 0  # deltas with many log-probabilities, and those behind them
        self._over = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    @property
    def response(self) -> Response:
        """The response so far."""
        return self._answer_format.response

    def start(self) -> None:
        """Submit the prompt; raises as `Generation.start` does."""
        self._generation.start(self)
        self._store.running[self._answer_format.response.id] = self
        self._watching = asyncio.create_task(self._watch())

    def cancel(self) -> None:
        """End the run, and store the response so far."""
        if not self._over.is_set():
            self._generation.close()
            self._answer_format.cancelled(self._generation.counts)
            self._end()

    def abandon(self) -> None:
        """End the run, and store nothing, as its record was deleted."""
        self._generation.close()
        self._end()

    def delta(self, index: int, delta: TextDelta) -> None:
        """Take new text."""
        if self._num_on_thread or are_packed(delta.logprobs):
            self._num_on_thread += 1
            self._generation.run_aside(partial(self._answer_format.text, index, delta), self._taken)
        else:
            self._answer_format.text(index, delta)
            self._end_once_finished()

    def prompt_logprobs(self, index: int, logprobs: list[LogprobEntries]) -> None:
        """Ignore log-probabilities of the prompt: no response asks for them."""

    def error(self, error: PyllmError) -> None:
        """Store the response as failed."""
        self._answer_format.failed(describe(error))
        self._end()

    def _taken(self, events: bytes) -> None:
        del events
        self._num_on_thread -= 1
        self._end_once_finished()

    def _end_once_finished(self) -> None:
        if self._generation.finished and not self._num_on_thread and not self._over.is_set():
            self._answer_format.end(self._generation.counts)
            self._end()

    def _end(self) -> None:
        self._over.set()
        self._store.running.pop(self._answer_format.response.id, None)

    async def _watch(self) -> None:
        while not self._over.is_set():
            try:
                async with asyncio.timeout(self._watch_interval):
                    await self._over.wait()
            except TimeoutError:
                record = await self._store.find(self._answer_format.response.id, self._owner)
                if record is None:
                    self.abandon()
                elif record.response.status == "cancelled":
                    self.cancel()
