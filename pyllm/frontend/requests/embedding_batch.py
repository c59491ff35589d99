"""Embeddings or classes of the prompts of one HTTP request: submits, counts and ends them together. Knows no JSON."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from pyllm.client.embedding import Embedding
from pyllm.client.submission import check_dimensions, refuse_embedding
from pyllm.errors import PyllmError
from pyllm.frontend.requests.admission_control import admit, charge
from pyllm.frontend.requests.prompt_batch import PromptBatch
from pyllm.frontend.requests.request_context import RequestContext
from pyllm.frontend.requests.server_state import ServerState
from pyllm.frontend.text.truncation import Truncation
from pyllm.parameters.scheduling_params import SchedulingParams

# Is handed the embedding of one prompt, by its index; they come in any order.
OnEmbedding = Callable[[int, Embedding], None]
OnFailure = Callable[[PyllmError], None]


async def embeddings_of(
    state: ServerState,
    context: RequestContext,
    scheduling: SchedulingParams,
    inputs: Sequence[str | list[int]],
    truncation: Truncation | None,
    *,
    dimensions: int | None = None,
    add_special_tokens: bool = True,
) -> "EmbeddingBatch":
    """The batch of a request's inputs, not started, once the request is admitted.

    Raises:
        PyllmError: the request is not admitted, an input is too long and not truncated, or the model has no
            embeddings of so many dimensions.
    """
    check_dimensions(dimensions, state.client.model)
    refuse_embedding(state.client.model)
    encode = partial(state.prompts.encode_inputs, inputs, truncation, add_special_tokens)
    return await batch_of(state, context, scheduling, len(inputs), encode, dimensions=dimensions)


async def batch_of(
    state: ServerState,
    context: RequestContext,
    scheduling: SchedulingParams,
    num_prompts: int,
    encode: Callable[[], Awaitable[Sequence[Sequence[int]]]],
    *,
    dimensions: int | None = None,
) -> "EmbeddingBatch":
    """The batch of as many prompts as `encode` gives, not started, once the request is admitted.

    Raises:
        PyllmError: the request is not admitted; or as `encode`.
    """
    await admit(state, context, num_prompts)
    prompts = await encode()
    await charge(state, context, sum(map(len, prompts)))
    return EmbeddingBatch(state, prompts, scheduling, context, dimensions)


class EmbeddingBatch(PromptBatch):
    """Requests the embedding of each prompt, and ends them all when one fails or the client has left."""

    def __init__(
        self,
        state: ServerState,
        prompts: Sequence[Sequence[int]],
        scheduling: SchedulingParams,
        context: RequestContext,
        dimensions: int | None = None,
    ) -> None:
        super().__init__(state, context, prompts, None, scheduling)
        self._dimensions = dimensions
        self._on_embedding: OnEmbedding
        self._on_failure: OnFailure
        self._requests: list[int] = []

    def start(self, on_embedding: OnEmbedding, on_failure: OnFailure) -> None:
        """Submit every prompt; raises as `Generation.start` does. No embedding comes after a failure."""
        self._on_embedding = on_embedding
        self._on_failure = on_failure
        self._start()

    def take(self, index: int, embedding: Embedding) -> None:
        """Count the embedding of one prompt, and pass it on."""
        if self.finished:
            return
        self._ticket.started()
        metrics = self._metrics[index]
        if embedding.start_times is not None:
            metrics.started(embedding.start_times)
        metrics.delta(0, 0, embedding.cached_tokens)
        metrics.finish(0, "stop")
        self._choice_ended("stop")
        self._on_embedding(index, embedding)

    def _submit(self, index: int, scheduling: SchedulingParams) -> None:
        client, sink = self._state.client, _PromptSink(self, index)
        self._requests.append(client.submit_embedding(self._prompts[index], sink, scheduling, self._dimensions))

    def _drop(self) -> None:
        for request in self._requests:
            self._state.client.abort(request)

    def _report(self, error: PyllmError) -> None:
        self._on_failure(error)


class _PromptSink:
    """The sink of one prompt's embedding."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: EmbeddingBatch, index: int) -> None:
        self._batch = batch
        self._index = index

    def embedding(self, embedding: Embedding) -> None:
        self._batch.take(self._index, embedding)

    def error(self, error: PyllmError) -> None:
        self._batch.error(error)
