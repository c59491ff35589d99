"""A response that is computed without a reader: it ends by itself, or when its record is cancelled or gone."""

import asyncio

from pyllm.errors import PyllmError
from pyllm.frontend.detokenizer import TextDelta
from pyllm.frontend.failure import describe
from pyllm.frontend.generation import Generation
from pyllm.frontend.logprobs import LogprobEntries
from pyllm.frontend.responses.form import ResponseForm
from pyllm.frontend.responses.kept import KeptResponses
from pyllm.frontend.responses.protocol import Response

# Seconds between looks at the record, by which another API process says that the run is to end.
WATCH_INTERVAL = 1.0


class BackgroundRun:
    """The receiver of a generation. `form` stores the response at the end."""

    def __init__(
        self,
        generation: Generation,
        form: ResponseForm,
        kept: KeptResponses,
        owner: str,
        *,
        watch_interval: float = WATCH_INTERVAL,
    ) -> None:
        self._generation = generation
        self._form = form
        self._kept = kept
        self._owner = owner
        self._watch_interval = watch_interval
        self._over = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    @property
    def response(self) -> Response:
        """As far as it is."""
        return self._form.response

    def start(self) -> None:
        """Submit the prompt; raises as `Generation.start` does."""
        self._generation.start(self)
        self._kept.running[self._form.response.id] = self
        self._watching = asyncio.create_task(self._watch())

    def cancel(self) -> None:
        """End it, with what there is."""
        if not self._over.is_set():
            self._generation.abort()
            self._form.cancelled(self._generation.counts)
            self._end()

    def abandon(self) -> None:
        """End it, and store nothing: nobody can ask for it any more."""
        self._generation.abort()
        self._end()

    def text(self, choice: int, delta: TextDelta) -> None:
        """Take new text."""
        self._form.text(choice, delta)
        if self._generation.finished:
            self._form.end(self._generation.counts)
            self._end()

    def prompt_logprobs(self, choice: int, logprobs: list[LogprobEntries]) -> None:
        """Never asked for."""

    def error(self, error: PyllmError) -> None:
        """Fail."""
        self._form.failed(describe(error))
        self._end()

    def _end(self) -> None:
        self._over.set()
        self._kept.running.pop(self._form.response.id, None)

    async def _watch(self) -> None:
        while not self._over.is_set():
            try:
                async with asyncio.timeout(self._watch_interval):
                    await self._over.wait()
            except TimeoutError:
                record = await self._kept.find(self._form.response.id, self._owner)
                if record is None:
                    self.abandon()
                elif record.response.status == "cancelled":
                    self.cancel()
