"""`POST /v1/rerank`, `/v1/score` and `/classify`: scores of texts, by a classifier or by embeddings."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec import UNSET, Struct

from pyllm.client.embedding import Embedding
from pyllm.client.submission import refuse_classes
from pyllm.errors import RequestError
from pyllm.frontend.answers.embeddings_answer import EmbeddingsAnswer
from pyllm.frontend.http.asgi import ASGIApp
from pyllm.frontend.http.pushed_response import push
from pyllm.frontend.http.routing import JSONBody, Request, ResponseSpec, Route, post
from pyllm.frontend.http.unsupported import refuse_unsupported
from pyllm.frontend.openai.embedding_protocol import MAX_INPUTS, EmbeddingUsage
from pyllm.frontend.openai.error_format import ERROR_RESPONSES, error_response
from pyllm.frontend.openai.parameters import split_prompts
from pyllm.frontend.requests.embedding_batch import EmbeddingBatch, batch_of
from pyllm.frontend.requests.request_context import RequestContext, context_of
from pyllm.frontend.requests.scheduling import scheduling_from
from pyllm.frontend.requests.server_state import ServerState
from pyllm.frontend.scoring.pairs import PairEncoder, Pairs
from pyllm.frontend.scoring.protocol import (
    FIRST_TEXTS,
    SECOND_TEXTS,
    Classification,
    ClassifyAnswer,
    ClassifyRequest,
    Document,
    RerankAnswer,
    RerankRequest,
    RerankResult,
    Score,
    ScoreAnswer,
    ScoreRequest,
    ScoringRequest,
)
from pyllm.frontend.scoring.scores import PairScorer, Vector, class_scores, pair_scorer
from pyllm.frontend.text.truncation import Truncation, truncation_from
from pyllm.parameters.scheduling_params import SchedulingParams


def scoring_routes(state: ServerState) -> list[Route]:
    """The routes, for one server."""
    encoder = PairEncoder(state.prompts, state.tokenizer, state.client.model, state.chat_template)
    return [_rerank_route(state, encoder), _score_route(state, encoder), _classify_route(state)]


def _rerank_route(state: ServerState, encoder: PairEncoder) -> Route:
    @post(
        ["/v1/rerank", "/v1/reranking", "/v2/rerank"],
        summary="Order documents by how well they answer a query",
        responses={200: ResponseSpec(RerankAnswer), **ERROR_RESPONSES},
    )
    async def rerank(request: Request, data: JSONBody[RerankRequest]) -> ASGIApp:
        context = await _begin(state, request, data)
        documents = [each if isinstance(each, Document) else Document(each) for each in data.documents]
        texts = [each.text for each in documents]
        pairs = Pairs([data.query], texts, ("query", "documents"))
        scorer, batch = await _scored(state, context, data, encoder, pairs)

        def whole(_: list[None]) -> RerankAnswer:
            scores = scorer.scores
            best = sorted(range(len(scores)), key=lambda index: -scores[index])[: data.top_n or None]
            shown = data.return_documents is not False
            results = [RerankResult(index, scores[index], documents[index] if shown else UNSET) for index in best]
            return RerankAnswer(f"rerank-{context.request_id}", context.model_name, _usage(batch), results)

        return _respond(batch, scorer.take, whole)

    return rerank


def _score_route(state: ServerState, encoder: PairEncoder) -> Route:
    @post(
        "/v1/score",
        summary="Score pairs of texts",
        responses={200: ResponseSpec(ScoreAnswer), **ERROR_RESPONSES},
    )
    async def score(request: Request, data: JSONBody[ScoreRequest]) -> ASGIApp:
        context = await _begin(state, request, data)
        (one, firsts), (other, seconds) = _given(data, FIRST_TEXTS), _given(data, SECOND_TEXTS)
        pairs = Pairs(firsts, seconds, (one, other))
        scorer, batch = await _scored(state, context, data, encoder, pairs)

        def whole(_: list[None]) -> ScoreAnswer:
            shown = [Score(index, score) for index, score in enumerate(scorer.scores)]
            return ScoreAnswer(f"score-{context.request_id}", context.created, context.model_name, shown, _usage(batch))

        return _respond(batch, scorer.take, whole)

    return score


def _classify_route(state: ServerState) -> Route:
    @post(
        "/classify",
        summary="Score the classes of texts",
        responses={200: ResponseSpec(ClassifyAnswer), **ERROR_RESPONSES},
    )
    async def classify(request: Request, data: JSONBody[ClassifyRequest]) -> ASGIApp:
        context = await _begin(state, request, data)
        if data.input is None:
            raise RequestError("input is missing: give a text or token ids, or a list of either", "input")
        inputs = split_prompts(data.input, "input", MAX_INPUTS)
        refuse_classes(model := state.client.model)
        scheduling, truncation = _limits(state, context, data)
        encode = partial(state.prompts.encode_inputs, inputs, truncation, data.add_special_tokens is not False)
        batch = await batch_of(state, context, scheduling, len(inputs), encode)
        activation = model.class_activation if data.use_activation is not False else "identity"

        def show(index: int, numbers: Vector) -> Classification:
            scores = class_scores(numbers, activation)
            best = max(range(len(scores)), key=scores.__getitem__)
            return Classification(index, model.labels[best], scores, len(scores))

        def whole(shown: list[Classification]) -> ClassifyAnswer:
            name = f"classify-{context.request_id}"
            return ClassifyAnswer(name, context.created, context.model_name, shown, _usage(batch))

        return _respond(batch, show, whole)

    return classify


async def _begin(state: ServerState, request: Request, data: ScoringRequest) -> RequestContext:
    context = context_of(request)
    context.name_tenant(data.user)
    await state.models.choose(context, data.model)
    refuse_unsupported(data)
    return context


def _given(data: ScoreRequest, names: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The one of some fields that a request has, and its texts."""
    given = [(name, texts) for name in names if (texts := getattr(data, name)) is not None]
    if len(given) != 1:
        raise RequestError(f"give one of {', '.join(names)}, got {len(given)} of them", names[0])
    name, texts = given[0]
    return name, [texts] if isinstance(texts, str) else texts


def _limits(
    state: ServerState, context: RequestContext, data: ScoringRequest
) -> tuple[SchedulingParams, Truncation | None]:
    truncation = truncation_from(data.truncate_prompt_tokens, data.truncation_side, 0, state.client.model)
    return scheduling_from(context, data.priority, timeout=data.timeout), truncation


async def _scored(
    state: ServerState, context: RequestContext, data: ScoringRequest, encoder: PairEncoder, pairs: Pairs
) -> tuple[PairScorer, EmbeddingBatch]:
    """The scorer of pairs of texts, and the batch whose results it takes."""
    name, number = pairs.names[1], len(pairs.seconds)
    context.name_fields({"input": name})
    if number > MAX_INPUTS:
        raise RequestError(f"{name} has {number} texts; one request may have at most {MAX_INPUTS}", name)
    scorer = pair_scorer(state.client.model, encoder, pairs, data.use_activation is not False)
    scheduling, truncation = _limits(state, context, data)
    encode = partial(scorer.prompts, truncation)
    return scorer, await batch_of(state, context, scheduling, scorer.num_prompts, encode)


def _usage(batch: EmbeddingBatch) -> EmbeddingUsage:
    return EmbeddingUsage(batch.num_prompt_tokens, batch.num_prompt_tokens)


def _respond(
    batch: EmbeddingBatch, show: Callable[[int, Vector], Any], whole: Callable[[list[Any]], Struct]
) -> ASGIApp:
    def take(index: int, embedding: Embedding) -> Any:
        return show(index, embedding.values)

    return partial(push, EmbeddingsAnswer(batch, take, whole, error_response))
