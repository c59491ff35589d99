"""The body of an answer with embeddings: one JSON object, once every embedding is there. Knows no API's shape."""

from collections.abc import Callable
from typing import Any, cast

import msgspec
from msgspec import Struct

from pyllm.client.embedding import Embedding
from pyllm.errors import PyllmError
from pyllm.frontend.answers.answer_format import send_failure, send_json
from pyllm.frontend.http.failure import Failure, describe
from pyllm.frontend.http.pushed_response import Channel
from pyllm.frontend.requests.embedding_batch import EmbeddingBatch

_encode = msgspec.json.Encoder().encode


class EmbeddingsAnswer:
    """The answer of a batch. `show` gives the JSON value of an embedding, `whole` the answer that has all of them.

    `show` is called as each embedding comes: to encode millions of numbers at the end would block the event loop.
    """

    def __init__(
        self,
        batch: EmbeddingBatch,
        show: Callable[[int, Embedding], Any],
        whole: Callable[[list[Any]], Struct],
        error: Callable[[Failure], Struct],
    ) -> None:
        self._batch = batch
        self._show = show
        self._whole = whole
        self._error = error
        self._channel: Channel
        self._shown: list[Any] = [None] * batch.num_choices

    def begin(self, channel: Channel) -> None:
        """Submit the prompts."""
        self._channel = channel
        self._batch.start(self._add, self._fail)

    def drained(self) -> None:
        """The whole answer is one write; nothing is left to do."""

    def end(self) -> None:
        """Abort the prompts that still run."""
        self._batch.close()

    def _add(self, index: int, embedding: Embedding) -> None:
        """Add an embedding; after the last, send everything."""
        self._shown[index] = self._show(index, embedding)
        if self._batch.finished:
            send_json(self._channel, 200, self._whole(self._shown))

    def _fail(self, error: PyllmError) -> None:
        """Answer with an error."""
        failure = describe(error)
        send_failure(self._channel, failure, self._error(failure))


def numbers(embedding: Embedding) -> list[float]:
    """The numbers of an embedding, which are JSON already."""
    return cast("list[float]", msgspec.Raw(_encode(embedding.values.tolist())))
