"""Scores of texts: those of a classifier's classes, and of pairs of texts. Knows no HTTP."""

import math
from collections.abc import Sequence
from operator import mul

from pyllm.errors import RequestError
from pyllm.frontend.scoring.pairs import Pair, encode_pairs
from pyllm.frontend.text.prompt_encoder import PromptEncoder
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.frontend.text.truncation import Truncation
from pyllm.wire.messages import ModelInfo

Vector = Sequence[float]
_YES = "yes"  # the class of a relevant document in rerankers that were text models


def class_scores(numbers: Vector, activation: str) -> list[float]:
    """The score of each class, from the numbers that a classifier gives."""
    if activation == "sigmoid":
        return [_sigmoid(number) for number in numbers]
    if activation == "softmax":
        greatest = max(numbers)
        weights = [math.exp(number - greatest) for number in numbers]
        return [weight / math.fsum(weights) for weight in weights]
    return list(numbers)


def likeness(one: Vector, other: Vector) -> float:
    """The cosine of the angle between two embeddings, which have length 1."""
    return math.fsum(map(mul, one, other))


class PairScorer:
    """Scores pairs of texts: by a reranker, or by the likeness of their embeddings. It takes the results of `prompts`.

    Without `use_activation` the scores of a reranker are the numbers that it gives. `scores` has those of the pairs, in
    their order, once all results are there.

    Raises:
        RequestError: the model has several classes, of which none says that two texts belong together; or it has
            none, and was not trained for embeddings.
    """

    def __init__(self, model: ModelInfo, pairs: Sequence[Pair], use_activation: bool = True) -> None:
        self._model = model
        self._pairs = pairs
        self._activation = model.class_activation if use_activation else "identity"
        self._relevant = 0
        self.scores = [0.0] * len(pairs)
        # Where all texts are embedded: each once, the pairs that it is in, and its embedding.
        self._texts: dict[str, list[int]] = {}
        self._vectors: dict[str, Vector] = {}
        if not model.labels and not model.is_for_embeddings:
            text = f"{model.name} generates text, and its embeddings rank nothing: use a reranker or an embedding model"
            raise RequestError(text, "model")
        if not model.labels:
            for number, texts in enumerate(pairs):
                for text in texts:
                    self._texts.setdefault(text, []).append(number)
        elif _YES in model.labels:
            self._relevant = model.labels.index(_YES)
        elif len(model.labels) > 1:
            text = f"{model.name} has {len(model.labels)} classes, and scores no pairs of texts: use /classify"
            raise RequestError(text, "model")
        self._order = [*self._texts]

    @property
    def num_prompts(self) -> int:
        """The number of `prompts`."""
        return len(self._texts) if self._texts else len(self._pairs)

    async def prompts(
        self, encoder: PromptEncoder, tokenizer: Tokenizer, truncation: Truncation | None
    ) -> Sequence[Sequence[int]]:
        """The token ids of each prompt.

        Raises:
            RequestTooLargeError: a text or pair does not fit the context, and there is no `truncation`.
        """
        if not self._texts:
            return await encode_pairs(encoder, tokenizer, self._model, self._pairs, truncation)
        return await encoder.encode_inputs(self._order, truncation)

    def take(self, index: int, vector: Vector) -> None:
        """Take the result of a prompt, and score the pairs that are complete now: all at the end would take long."""
        if not self._texts:
            self.scores[index] = class_scores(vector, self._activation)[self._relevant]
            return
        text = self._order[index]
        self._vectors[text] = vector
        for number in self._texts[text]:
            one, other = map(self._vectors.get, self._pairs[number])
            if one is not None and other is not None:
                self.scores[number] = likeness(one, other)


def paired(firsts: Sequence[str], seconds: Sequence[str], name: str = "data_2") -> list[Pair]:
    """One text with each of some others, or texts with as many others, in order; `name` is the field of the others.

    Raises:
        RequestError: the numbers of texts do not fit, or there are none.
    """
    if not firsts or not seconds or len(firsts) not in {1, len(seconds)}:
        text = f"give one text and some others, or as many texts twice, got {len(firsts)} and {len(seconds)}"
        raise RequestError(text, name)
    return list(zip([*firsts] * len(seconds) if len(firsts) == 1 else firsts, seconds, strict=True))


def _sigmoid(number: float) -> float:
    # `exp` of a large number would overflow.
    return 1 / (1 + math.exp(-number)) if number >= 0 else math.exp(number) / (1 + math.exp(number))
