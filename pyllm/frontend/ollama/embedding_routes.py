"""`POST /api/embed`, and `/api/embeddings` for one text, which is older."""

import time
from functools import partial

from pyllm.client.embedding import Embedding
from pyllm.frontend.answers.embeddings_answer import EmbeddingsAnswer, numbers
from pyllm.frontend.http.asgi import ASGIApp
from pyllm.frontend.http.pushed_response import push
from pyllm.frontend.http.routing import JSONBody, Request, Response, ResponseSpec, Route, post
from pyllm.frontend.ollama.answer_format import nanoseconds
from pyllm.frontend.ollama.error_format import ERROR_RESPONSES, error_response
from pyllm.frontend.ollama.model_names import choose_model
from pyllm.frontend.ollama.options import tell_kept
from pyllm.frontend.ollama.protocol import EmbedAnswer, EmbeddingsAnswerBody, EmbeddingsRequest, EmbedRequest
from pyllm.frontend.openai.embedding_protocol import MAX_INPUTS
from pyllm.frontend.openai.parameters import split_prompts
from pyllm.frontend.requests.embedding_batch import embeddings_of
from pyllm.frontend.requests.request_context import context_of
from pyllm.frontend.requests.scheduling import scheduling_from
from pyllm.frontend.requests.server_state import ServerState
from pyllm.frontend.text.truncation import Truncation, truncation_from


def embed_route(state: ServerState) -> Route:
    """The route, for one server."""

    @post(
        "/api/embed",
        summary="Embed texts in Ollama's shape",
        responses={200: ResponseSpec(EmbedAnswer), **ERROR_RESPONSES},
    )
    async def embed(request: Request, data: JSONBody[EmbedRequest]) -> ASGIApp | Response[EmbedAnswer]:
        context = context_of(request)
        load_seconds = await choose_model(state, context, data.model)
        tell_kept(context, data.keep_alive)
        if not data.input:  # Ollama's way to load a model.
            return Response(EmbedAnswer(data.model, [], 0, nanoseconds(load_seconds), 0))
        inputs = split_prompts([data.input] if isinstance(data.input, str) else [*data.input], "input", MAX_INPUTS)
        truncation = None if data.truncate is False else _to_context(state)
        scheduling = scheduling_from(context, None)
        batch = await embeddings_of(state, context, scheduling, inputs, truncation, dimensions=data.dimensions)

        def whole(shown: list[list[float]]) -> EmbedAnswer:
            total = nanoseconds(time.monotonic() - context.arrival)
            return EmbedAnswer(data.model, shown, total, nanoseconds(load_seconds), batch.num_prompt_tokens)

        return partial(push, EmbeddingsAnswer(batch, _show, whole, error_response))

    return embed


def embeddings_route(state: ServerState) -> Route:
    """The route, for one server."""

    @post(
        "/api/embeddings",
        summary="Embed one text in Ollama's older shape",
        responses={200: ResponseSpec(EmbeddingsAnswerBody), **ERROR_RESPONSES},
    )
    async def embed_prompt(
        request: Request, data: JSONBody[EmbeddingsRequest]
    ) -> ASGIApp | Response[EmbeddingsAnswerBody]:
        context = context_of(request)
        await choose_model(state, context, data.model)
        tell_kept(context, data.keep_alive)
        if not data.prompt:
            return Response(EmbeddingsAnswerBody([]))
        batch = await embeddings_of(state, context, scheduling_from(context, None), [data.prompt], _to_context(state))

        def whole(shown: list[list[float]]) -> EmbeddingsAnswerBody:
            return EmbeddingsAnswerBody(shown[0])

        return partial(push, EmbeddingsAnswer(batch, _show, whole, error_response))

    return embed_prompt


def _show(index: int, embedding: Embedding) -> list[float]:
    del index
    return numbers(embedding)


def _to_context(state: ServerState) -> Truncation | None:
    return truncation_from(-1, "right", 0, state.client.model)
