"""The embeddings of all prompts of one HTTP request: asked for, counted, and ended together. Knows no JSON."""

from collections.abc import Sequence
from typing import Protocol

from pyllm.errors import DeadlineError, PyllmError
from pyllm.frontend.embedding import Embedding
from pyllm.frontend.metrics import RequestMetrics
from pyllm.frontend.server_state import ServerState
from pyllm.frontend.ticket import Ticket
from pyllm.scheduling_params import SchedulingParams


class Receiver(Protocol):
    """Where the embeddings go."""

    def embedding(self, index: int, embedding: Embedding) -> None:
        """That of one prompt; they come in any order."""

    def error(self, error: PyllmError) -> None:
        """The whole request has failed; nothing follows."""


class EmbeddingBatch:
    """Asks for the embedding of each prompt, and ends all of it when one fails or nobody waits any more."""

    def __init__(
        self, state: ServerState, ticket: Ticket, prompts: Sequence[Sequence[int]], scheduling: SchedulingParams
    ) -> None:
        self._state = state
        self._ticket = ticket
        self._prompts = prompts
        self._scheduling = scheduling
        self._receiver: Receiver
        self._requests: list[int] = []
        self._metrics: list[RequestMetrics] = []
        self._num_open = len(prompts)

    @property
    def finished(self) -> bool:
        """Whether nothing follows."""
        return self._num_open == 0

    @property
    def num_prompts(self) -> int:
        """How many embeddings there will be."""
        return len(self._prompts)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of all prompts together."""
        return sum(map(len, self._prompts))

    def start(self, receiver: Receiver) -> None:
        """Submit every prompt.

        Raises:
            RequestError, EngineDeadError: one of them cannot run; then none does.
        """
        self._receiver = receiver
        self._enter()
        try:
            for index, prompt in enumerate(self._prompts):
                self._submit(index, prompt)
        except PyllmError:
            self._end("error")
            raise

    def abort(self) -> None:
        """End what still runs; nothing more is heard of it."""
        if not self.finished:
            self._end("abort")

    def fail(self, error: PyllmError) -> None:
        """End what still runs, and tell the receiver why."""
        if not self.finished:
            self._end("deadline" if isinstance(error, DeadlineError) else "error")
            self._receiver.error(error)

    def take(self, index: int, embedding: Embedding) -> None:
        """Count the embedding of one prompt, and pass it on."""
        if self.finished:
            return
        self._ticket.started()
        metrics = self._metrics[index]
        metrics.delta(0, 0, embedding.cached_tokens)
        metrics.finish(0, "stop")
        self._num_open -= 1
        if self._num_open == 0:
            self._leave()
        self._receiver.embedding(index, embedding)

    def _enter(self) -> None:
        self._state.enter(self.fail)
        self._ticket.hold()

    def _leave(self) -> None:
        self._state.leave(self.fail)
        self._ticket.ended(0)

    def _submit(self, index: int, prompt: Sequence[int]) -> None:
        if self.finished:
            return  # One before it was refused at once.
        self._metrics.append(self._state.metrics.request(len(prompt), 1))
        sink = _PromptSink(self, index)
        self._requests.append(self._state.client.submit_embedding(prompt, sink, self._scheduling))

    def _end(self, reason: str) -> None:
        self._num_open = 0
        for request in self._requests:
            self._state.client.abort(request)
        for metrics in self._metrics:
            metrics.end(reason)
        self._leave()


class _PromptSink:
    """Where one prompt's embedding arrives."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: EmbeddingBatch, index: int) -> None:
        self._batch = batch
        self._index = index

    def embedding(self, embedding: Embedding) -> None:
        self._batch.take(self._index, embedding)

    def error(self, error: PyllmError) -> None:
        self._batch.fail(error)
