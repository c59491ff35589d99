"""`POST /v1/embeddings`: embeds texts or lists of token ids, with the model that generates."""

import binascii
from functools import partial

from pyllm.client.embedding import Embedding
from pyllm.frontend.answers.embeddings_answer import EmbeddingsAnswer, numbers
from pyllm.frontend.http.asgi import ASGIApp
from pyllm.frontend.http.pushed_response import push
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
from pyllm.frontend.requests.embedding_batch import embeddings_of
from pyllm.frontend.requests.request_context import context_of
from pyllm.frontend.requests.scheduling import scheduling_from
from pyllm.frontend.requests.server_state import ServerState
from pyllm.frontend.text.truncation import truncation_from


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
        truncation = truncation_from(data.truncate_prompt_tokens, data.truncation_side, 0, state.client.model)
        scheduling = scheduling_from(context, data.priority, timeout=data.timeout)
        inputs = split_prompts(data.input, "input", MAX_INPUTS)
        batch = await embeddings_of(
            state,
            context,
            scheduling,
            inputs,
            truncation,
            dimensions=data.dimensions,
            add_special_tokens=data.add_special_tokens is not False,
        )
        show = _in_base64 if data.encoding_format == "base64" else _in_numbers

        def whole(shown: list[EmbeddingData]) -> EmbeddingList:
            usage = EmbeddingUsage(batch.num_prompt_tokens, batch.num_prompt_tokens)
            return EmbeddingList(shown, context.model_name, usage, f"embd-{context.request_id}", context.created)

        return partial(push, EmbeddingsAnswer(batch, show, whole, error_response))

    return create_embeddings


def _in_base64(index: int, embedding: Embedding) -> EmbeddingData:
    return EmbeddingData(index, binascii.b2a_base64(embedding.values.tobytes(), newline=False).decode())


def _in_numbers(index: int, embedding: Embedding) -> EmbeddingData:
    return EmbeddingData(index, numbers(embedding))
