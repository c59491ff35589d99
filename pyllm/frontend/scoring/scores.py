"""Scores of texts: those of a classifier's classes, and of pairs of texts. Knows no HTTP."""

import math
from collections.abc import Sequence
from itertools import chain
from operator import mul
from typing import Protocol

from pyllm.errors import RequestError
from pyllm.frontend.scoring.pairs import PairEncoder, Pairs
from pyllm.frontend.text.truncation import Truncation
from pyllm.wire.messages import ModelInfo

Vector = Sequence[float]


def class_scores(numbers: Vector, activation: str) -> list[float]:
    """The score of each class, from the numbers that a classifier gives."""
    if activation == "sigmoid":
        return [_sigmoid(number) for number in numbers]
    if activation == "softmax":
        greatest = max(numbers)
        weights = [math.exp(number - greatest) for number in numbers]
        return [weight / math.fsum(weights) for weight in weights]
    return list(numbers)


def relevance(numbers: Vector, model: ModelInfo, use_activation: bool) -> float:
    """The score of a pair that a reranker gives; without `use_activation` its logit, of two classes the difference."""
    assert model.relevant_class is not None
    if use_activation:
        return class_scores(numbers, model.class_activation)[model.relevant_class]
    return numbers[model.relevant_class] - (numbers[1 - model.relevant_class] if len(numbers) == 2 else 0)


def cosine_similarity(one: Vector, other: Vector) -> float:
    """The cosine of the angle between two embeddings, which have length 1."""
    return math.fsum(map(mul, one, other))


class PairScorer(Protocol):
    """Scores pairs of texts by the results of its prompts; `scores` has those of the pairs, in their order, at the end.

    `num_prompts` is known before the prompts are encoded.
    """

    scores: list[float]
    num_prompts: int

    async def prompts(self, truncation: Truncation | None) -> Sequence[Sequence[int]]:
        """The token ids of each prompt; raises as `PairEncoder.encode`."""

    def take(self, index: int, vector: Vector) -> None:
        """Take the result of a prompt; they come in any order."""


def pair_scorer(model: ModelInfo, encoder: PairEncoder, pairs: Pairs, use_activation: bool) -> PairScorer:
    """The scorer of some pairs: by the classes of a reranker, or by the cosine similarity of embeddings.

    Raises:
        RequestError: the texts make no pairs. The model has several classes, of which none says that two texts belong
            together; or it has none, and was not trained for embeddings.
    """
    pairs.check()
    if model.relevant_class is not None:
        return CrossEncoderScorer(model, encoder, pairs, use_activation)
    if model.labels:
        text = f"{model.name} has {len(model.labels)} classes, and scores no pairs of texts: use /classify"
        raise RequestError(text, "model")
    if not model.is_for_embeddings:
        text = f"{model.name} generates text, and its embeddings rank nothing: use a reranker or an embedding model"
        raise RequestError(text, "model")
    return EmbeddingScorer(encoder, pairs)


class CrossEncoderScorer:
    """Scores by a reranker, which reads both texts of a pair together."""

    def __init__(self, model: ModelInfo, encoder: PairEncoder, pairs: Pairs, use_activation: bool) -> None:
        self._model = model
        self._encoder = encoder
        self._pairs = pairs
        self._use_activation = use_activation
        self.num_prompts = len(pairs.seconds)
        self.scores = [0.0] * self.num_prompts

    async def prompts(self, truncation: Truncation | None) -> Sequence[Sequence[int]]:
        """See `PairScorer.prompts`."""
        return await self._encoder.encode(self._pairs, truncation)

    def take(self, index: int, vector: Vector) -> None:
        """See `PairScorer.take`."""
        self.scores[index] = relevance(vector, self._model, self._use_activation)


class EmbeddingScorer:
    """Scores by the embeddings of the texts, each of which is embedded once."""

    def __init__(self, encoder: PairEncoder, pairs: Pairs) -> None:
        self._encoder = encoder
        self._pairs = pairs
        self._both = list(pairs.texts)
        self._numbers: dict[str, list[int]] = {}
        for number, texts in enumerate(self._both):
            for text in texts:
                self._numbers.setdefault(text, []).append(number)
        # The text of most pairs comes first, so that no result completes many pairs at once.
        self._texts = sorted(self._numbers, key=lambda text: -len(self._numbers[text]))
        self._vectors: dict[str, Vector] = {}
        self.num_prompts = len(self._texts)
        self.scores = [0.0] * len(pairs.seconds)

    async def prompts(self, truncation: Truncation | None) -> Sequence[Sequence[int]]:
        """See `PairScorer.prompts`."""
        encoded = await self._encoder.encode_apart(self._pairs, truncation)
        tokens = dict(zip(chain(*self._pairs[:2]), chain(*encoded), strict=True))
        return [tokens[text] for text in self._texts]

    def take(self, index: int, vector: Vector) -> None:
        """See `PairScorer.take`."""
        text = self._texts[index]
        self._vectors[text] = vector
        for number in self._numbers[text]:
            one, other = map(self._vectors.get, self._both[number])
            if one is not None and other is not None:
                self.scores[number] = cosine_similarity(one, other)


def _sigmoid(number: float) -> float:
    # `exp` of a large number would overflow.
    return 1 / (1 + math.exp(-number)) if number >= 0 else math.exp(number) / (1 + math.exp(number))
