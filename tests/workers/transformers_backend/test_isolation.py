"""The checks of a loaded model, on models that mix tokens in ways that attention does not see."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from pyllm.errors import ConfigError
from pyllm.workers.step.attention_batch import Chunk
from pyllm.workers.transformers_backend.isolation import check_isolation
from pyllm.workers.transformers_backend.model import TransformersModel

VOCABULARY, SIZE = 50, 8
EMBEDDING = torch.randn(VOCABULARY, SIZE, generator=torch.Generator().manual_seed(0))
SHIFT = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(1))


def causal_mean(vectors: Tensor) -> Tensor:
    """What stands for attention: each token sees those before it in its sequence."""
    return vectors.cumsum(0) / torch.arange(1, len(vectors) + 1).unsqueeze(1)


class FakeModel:
    """A model of one layer. `along_batch` is an operation along the flat batch, `alone` what it should compute."""

    dtype = torch.float32
    padding = None

    def __init__(self, along_batch: Callable[[Tensor], Tensor] = lambda x: x, alone: Any = None) -> None:
        self.spec = cast(Any, type("Spec", (), {"architecture": "FakeForCausalLM", "vocab_size": VOCABULARY}))
        self._along_batch = along_batch
        self._alone = alone or (lambda tokens: causal_mean(along_batch(EMBEDDING[tokens])))
        self._cache: dict[int, Tensor] = {}

    def compute(self, chunks: Sequence[Chunk]) -> Tensor:
        vectors = self._along_batch(EMBEDDING[np.concatenate([chunk.tokens for chunk in chunks])])
        outputs = []
        for chunk, own in zip(chunks, vectors.split([len(chunk.tokens) for chunk in chunks]), strict=True):
            known = self._cache.get(chunk.sequence, vectors[:0])[: chunk.start]
            self._cache[chunk.sequence] = torch.cat([known, own])
            outputs.append(causal_mean(self._cache[chunk.sequence])[chunk.start :])
        return torch.cat(outputs)

    is_exact = True

    def own_attention(self, tokens: Tensor, name: str) -> tuple[Tensor, Tensor]:
        del name
        hidden = self._alone(tokens)
        return hidden, self.logits(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden @ EMBEDDING.T


def check(model: FakeModel) -> None:
    check_isolation(cast(TransformersModel, model), model.compute, 24)


def test_a_model_of_attention_alone_passes() -> None:
    check(FakeModel())


def test_tokens_of_a_step_that_work_one_by_one_pass() -> None:
    check(FakeModel(lambda vectors: torch.tanh(vectors @ SHIFT)))


def test_a_convolution_along_the_batch_is_refused() -> None:
    def convolution(vectors: Tensor) -> Tensor:
        return vectors + vectors.roll(1, 0) @ SHIFT

    with pytest.raises(ConfigError, match="what it computes of a sequence depends on the others in the step"):
        check(FakeModel(convolution))


def test_a_shift_behind_the_attention_is_refused_though_it_changes_one_token() -> None:
    """Of a sequence that follows another only the first token takes in what is not its own."""

    class Shift(FakeModel):
        def compute(self, chunks: Sequence[Chunk]) -> Tensor:
            hidden = super().compute(chunks)
            return hidden + 0.1 * torch.cat([hidden[:1] * 0, hidden[:-1]])

    def alone(tokens: Tensor) -> Tensor:
        hidden = causal_mean(EMBEDDING[tokens])
        return hidden + 0.1 * torch.cat([hidden[:1] * 0, hidden[:-1]])

    with pytest.raises(ConfigError, match="depends on the others in the step"):
        check(Shift(alone=alone))


def test_a_token_that_differs_now_and_then_passes() -> None:
    """As where rounding chooses another expert."""

    class Flip(FakeModel):
        num_computed = 0

        def compute(self, chunks: Sequence[Chunk]) -> Tensor:
            self.num_computed += 1
            hidden = super().compute(chunks)
            if self.num_computed == 3:
                hidden[5] += 1
            return hidden

    check(Flip())


def test_what_is_rounded_may_be_as_far_from_transformers_as_its_own_attentions_are_from_one_another() -> None:
    class Rounded(FakeModel):
        is_exact = False

        def own_attention(self, tokens: Tensor, name: str) -> tuple[Tensor, Tensor]:
            hidden, _ = super().own_attention(tokens, name)
            hidden = hidden * {"eager": 1.0, "sdpa": 1.3}[name]
            return hidden, self.logits(hidden)

    check(Rounded(alone=lambda tokens: 1.8 * causal_mean(EMBEDDING[tokens])))
    with pytest.raises(ConfigError, match="something else than with its own"):
        check(Rounded(alone=lambda tokens: -causal_mean(EMBEDDING[tokens])))


def test_a_convolution_that_begins_anew_with_each_step_is_refused() -> None:
    """Nothing of another sequence comes in, but of one's own what came in the step before is lost."""

    class Convolution(FakeModel):
        def compute(self, chunks: Sequence[Chunk]) -> Tensor:
            parts = [EMBEDDING[chunk.tokens] for chunk in chunks]
            self._along_batch = lambda _: torch.cat([shifted(part) for part in parts])
            return super().compute(chunks)

    def shifted(vectors: Tensor) -> Tensor:
        return vectors + torch.cat([vectors[:1] * 0, vectors[:-1]]) @ SHIFT

    with pytest.raises(ConfigError, match="depends on where a step begins, or on more than keys and values"):
        check(Convolution(alone=lambda tokens: causal_mean(shifted(EMBEDDING[tokens]))))


def test_positions_that_are_counted_along_the_batch_are_refused() -> None:
    positions = torch.randn(99, SIZE, generator=torch.Generator().manual_seed(2))
    with pytest.raises(ConfigError, match="depends on the others in the step"):
        check(FakeModel(lambda vectors: vectors + positions[: len(vectors)]))


def test_another_result_than_that_of_transformers_is_refused() -> None:
    with pytest.raises(ConfigError, match="with our attention it computes something else than with its own"):
        check(FakeModel(alone=lambda tokens: 1.01 * causal_mean(EMBEDDING[tokens])))


def test_numbers_that_are_none_are_refused() -> None:
    for model in (
        FakeModel(lambda vectors: vectors / 0 * 0),
        FakeModel(alone=lambda tokens: EMBEDDING[tokens] / 0 * 0),
    ):
        with pytest.raises(ConfigError, match="it computes something else than with its own"):
            check(model)


def test_logits_that_need_more_than_hidden_states_are_refused() -> None:
    class TwoInputs(FakeModel):
        def own_attention(self, tokens: Tensor, name: str) -> tuple[Tensor, Tensor]:
            hidden, logits = super().own_attention(tokens, name)
            return hidden, logits + tokens.unsqueeze(1)

    with pytest.raises(ConfigError, match="its logits do not follow from its hidden states alone"):
        check(TwoInputs())
