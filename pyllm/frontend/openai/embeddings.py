"""`POST /v1/embeddings`: embeds texts or lists of token ids, with the model that generates."""

import binascii
from collections.abc import Sequence
from functools import partial
from typing import cast

import msgspec

from pyllm.client.embedding import Embedding
from pyllm.client.submission import check_dimensions, refuse_input
from pyllm.errors import PyllmError
from pyllm.frontend.answers.answer_format import send_failure, send_json
from pyllm.frontend.http.asgi import ASGIApp
from pyllm.frontend.http.failure import describe
from pyllm.frontend.http.pushed_response import Channel, push
from pyllm.frontend.http.routing import JSONBody, Request, ResponseSpec, Route, post
from pyllm.frontend.http.unsupported import refuse_unsupported
from pyllm.frontend.openai.embedding_protocol import (
    MAX_INPUTS,
    EmbeddingData,
    EmbeddingList,
    EmbeddingRequest,
    EmbeddingUsage,
)
from pyllm.frontend.openai.error_format import ERROR_RESPONSES, error_response
from pyllm.frontend.openai.parameters import split_prompts
from pyllm.frontend.requests.admission_control import admit, charge
from pyllm.frontend.requests.embedding_batch import EmbeddingBatch
from pyllm.frontend.requests.request_context import RequestContext, context_of
from pyllm.frontend.requests.scheduling import scheduling_from
from pyllm.frontend.requests.server_state import ServerState
from pyllm.frontend.text.truncation import truncation_from

_encode = msgspec.json.Encoder().encode


def embeddings_route(state: ServerState) -> Route:
    """The route, for one server."""

    @post(
        "/v1/embeddings",
        summary="Embed texts",
        responses={200: ResponseSpec(EmbeddingList), **ERROR_RESPONSES},
    )
    async def create_embeddings(request: Request, data: JSONBody[EmbeddingRequest]) -> ASGIApp:
        context = context_of(request)
        context.name_tenant(data.user)
        await state.models.choose(context, data.model)
        refuse_unsupported(data)
        check_dimensions(data.dimensions, state.client.model)
        truncation = truncation_from(data.truncate_prompt_tokens, data.truncation_side, 0, state.client.model)
        scheduling = scheduling_from(context, data.priority, timeout=data.timeout)
        inputs = split_prompts(data.input, "input", MAX_INPUTS)
        special = data.add_special_tokens is not False
        await admit(state, context, len(inputs))
        too_long = refuse_input if truncation is None else None
        whole = await state.prompts.encode(inputs, special, too_long, "input")
        prompts: Sequence[Sequence[int]] = (
            whole if truncation is None else [truncation.kept(tokens) for tokens in whole]
        )
        await charge(state, context, sum(map(len, prompts)))
        batch = EmbeddingBatch(state, prompts, scheduling, context, data.dimensions)
        answer = EmbeddingsAnswer(batch, context, data.encoding_format == "base64")
        return partial(push, answer)

    return create_embeddings


class EmbeddingsAnswer:
    """One JSON object, once every embedding is there."""

    def __init__(self, batch: EmbeddingBatch, context: RequestContext, in_base64: bool) -> None:
        self._batch = batch
        self._context = context
        self._in_base64 = in_base64
        self._channel: Channel
        self._data: list[EmbeddingData | None] = [None] * batch.num_choices

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
        values = embedding.values
        if self._in_base64:
            text = binascii.b2a_base64(values.tobytes(), newline=False).decode()
            self._data[index] = EmbeddingData(index, text)
        else:
            # Encoded now: to encode millions of numbers at the end would block the event loop.
            numbers = cast("list[float]", msgspec.Raw(_encode(values.tolist())))
            self._data[index] = EmbeddingData(index, numbers)
        if self._batch.finished:
            num_tokens = self._batch.num_prompt_tokens
            data = [each for each in self._data if each is not None]
            usage = EmbeddingUsage(num_tokens, num_tokens)
            answer = EmbeddingList(
                data, self._context.model_name, usage, f"embd-{self._context.request_id}", self._context.created
            )
            send_json(self._channel, 200, answer)

    def _fail(self, error: PyllmError) -> None:
        """Answer with an error."""
        failure = describe(error)
        send_failure(self._channel, failure, error_response(failure))
