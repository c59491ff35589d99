"""A prompt's embedding, from the core to the caller. Knows neither text nor HTTP."""

import asyncio
import math
from array import array
from typing import Protocol

import msgspec

from pyllm.client.columns import StartTimes
from pyllm.client.logprobs import LogprobEntries
from pyllm.client.token_reader import TokenDelta
from pyllm.errors import DeadlineError, EngineDeadError, PyllmError
from pyllm.wire.messages import FinishCode


class Embedding(msgspec.Struct, frozen=True):
    """A vector of length 1, float32, or a classifier's numbers; `cached_tokens` of its prompt were in the prefix cache.

    `start_times` is None if the core does not report it.
    """

    values: "array[float]"
    cached_tokens: int = 0
    start_times: StartTimes | None = None


class EmbeddingOutput(msgspec.Struct):
    """The vector, in the form of vLLM's interface."""

    embedding: list[float]


class EmbeddingRequestOutput(msgspec.Struct):
    """One prompt's embedding, in the form of vLLM's interface."""

    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True


class ScoringOutput(msgspec.Struct):
    """The score of two texts, in the form of vLLM's interface."""

    score: float


class ScoringRequestOutput(msgspec.Struct):
    """The score of one pair of texts, in the form of vLLM's interface."""

    request_id: str
    outputs: ScoringOutput
    finished: bool = True


class ClassificationOutput(msgspec.Struct):
    """The score of each class, in the form of vLLM's interface."""

    probs: list[float]

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.probs)


class ClassificationRequestOutput(msgspec.Struct):
    """The classes of one prompt, in the form of vLLM's interface."""

    request_id: str
    outputs: ClassificationOutput
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True


class EmbeddingSink(Protocol):
    """The receiver of one embedding. One of its functions is called, once, from the event loop."""

    def embedding(self, embedding: Embedding) -> None:
        """Take the embedding."""

    def error(self, error: PyllmError) -> None:
        """The request has failed."""


class EmbeddingReceiver:
    """The sink of a stream that ends with an embedding and has no tokens."""

    __slots__ = ("_dimensions", "_sink", "_values")

    def __init__(self, sink: EmbeddingSink, dimensions: int | None = None) -> None:
        self._sink = sink
        self._dimensions = dimensions
        self._values: array[float] = array("f")

    def take(self, values: bytes) -> None:
        """Keep the vector, which comes before the last delta."""
        self._values = array("f", values)
        if self._dimensions is not None and self._dimensions < len(self._values):
            self._values = _normalised(self._values[: self._dimensions])

    def delta(self, index: int, delta: TokenDelta) -> None:
        """Pass on the embedding or an error; there is one delta."""
        del index
        if delta.finish == FinishCode.STOP and self._values:
            self._sink.embedding(Embedding(self._values, delta.cached_tokens, delta.start_times))
        elif delta.finish == FinishCode.DEADLINE:
            self._sink.error(DeadlineError("the timeout passed before the embedding was computed"))
        elif delta.finish == FinishCode.ABORT:
            self._sink.error(PyllmError("the request was aborted before its embedding was computed"))
        else:
            self._sink.error(EngineDeadError("the engine ended this request without an embedding"))

    def prompt_logprobs(self, index: int, logprobs: list[LogprobEntries]) -> None:
        """Do nothing: never requested."""

    def error(self, error: PyllmError) -> None:
        """Pass the request's failure on."""
        self._sink.error(error)


class EmbeddingReader:
    """A sink with one reader, which awaits `result`."""

    def __init__(self) -> None:
        self.result: asyncio.Future[Embedding] = asyncio.get_running_loop().create_future()

    def embedding(self, embedding: Embedding) -> None:
        """Wake the reader."""
        if not self.result.done():
            self.result.set_result(embedding)

    def error(self, error: PyllmError) -> None:
        """Wake the reader with the failure."""
        if not self.result.done():
            self.result.set_exception(error)


def _normalised(values: "array[float]") -> "array[float]":
    length = math.sqrt(math.fsum(value * value for value in values)) or 1.0
    return array("f", (value / length for value in values))
