"""The embeddings of all prompts of one HTTP request: submits, counts and ends them together. Knows no JSON."""

from collections.abc import Callable, Sequence

from pyllm.client.embedding import Embedding
from pyllm.errors import PyllmError
from pyllm.frontend.observability.metrics import RequestMetrics
from pyllm.frontend.requests.request_context import RequestContext
from pyllm.frontend.requests.request_lifecycle import OnFailure, RequestLifecycle
from pyllm.frontend.requests.server_state import ServerState
from pyllm.parameters.scheduling_params import SchedulingParams

# Is handed the embedding of one prompt, by its index; they come in any order.
OnEmbedding = Callable[[int, Embedding], None]


class EmbeddingBatch:
    """Requests the embedding of each prompt, and ends them all when one fails or the client has left.

    `context` is that of an admitted request; from `start` on the batch has to return its ticket.
    """

    def __init__(
        self,
        state: ServerState,
        prompts: Sequence[Sequence[int]],
        scheduling: SchedulingParams,
        context: RequestContext,
        dimensions: int | None = None,
    ) -> None:
        self._dimensions = dimensions
        self._client = state.client
        self._log = state.request_log
        self._request_id = context.request_id
        self._prompts = prompts
        self._lifecycle = RequestLifecycle(state, context, prompts, None, scheduling, drop=self._drop)
        self._on_embedding: OnEmbedding
        self._requests: list[int] = []

    @property
    def finished(self) -> bool:
        """Whether no further embedding follows."""
        return self._lifecycle.num_open == 0

    @property
    def num_prompts(self) -> int:
        """The number of embeddings that will come."""
        return len(self._prompts)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of all prompts together."""
        return self._lifecycle.num_prompt_tokens

    def start(self, on_embedding: OnEmbedding, on_failure: OnFailure) -> None:
        """Submit every prompt; raises as `RequestLifecycle.start` does. No embedding comes after a failure."""
        self._on_embedding = on_embedding
        self._log.received(self._request_id, self._prompts, None)
        self._lifecycle.start(self._submit, on_failure)

    def abort(self) -> None:
        """End the requests that still run; no embedding or failure follows."""
        self._lifecycle.abort()

    def _submit(self, index: int, metrics: RequestMetrics, scheduling: SchedulingParams) -> None:
        sink = _PromptSink(self._lifecycle, self._on_embedding, index, metrics)
        self._requests.append(self._client.submit_embedding(self._prompts[index], sink, scheduling, self._dimensions))

    def _drop(self) -> None:
        for request in self._requests:
            self._client.abort(request)


class _PromptSink:
    """The sink of one prompt's embedding: counts it, and passes it on."""

    __slots__ = ("_index", "_lifecycle", "_metrics", "_on_embedding")

    def __init__(
        self, lifecycle: RequestLifecycle, on_embedding: OnEmbedding, index: int, metrics: RequestMetrics
    ) -> None:
        self._lifecycle = lifecycle
        self._on_embedding = on_embedding
        self._index = index
        self._metrics = metrics

    def embedding(self, embedding: Embedding) -> None:
        if not self._lifecycle.num_open:
            return
        self._lifecycle.output_started()
        if embedding.start_times is not None:
            self._metrics.started(embedding.start_times)
        self._metrics.delta(0, 0, embedding.cached_tokens)
        self._metrics.finish(0, "stop")
        self._lifecycle.choice_ended("stop")
        self._on_embedding(self._index, embedding)

    def error(self, error: PyllmError) -> None:
        self._lifecycle.fail(error)
