"""The interface between a model and what runs it: `Decoder` of the families, and `TransformersModel`."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from pyllm_kernels import PackedLinear
from torch import Tensor

from pyllm.workers.loaders.weights import WeightReader
from pyllm.workers.step.forward_context import ForwardContext


class CausalModel(Protocol):
    """The whole model, or one rank's share of it."""

    @property
    def embedding_bytes(self) -> int:
        """Bytes of the packed embedding and of a head of its own."""

    def load(self, reader: WeightReader) -> None:
        """Fill every parameter.

        Raises:
            ConfigError: a file has shrunk, or does not fit.
        """

    def matrices(self) -> Iterator[PackedLinear]:
        """Every matrix but the embedding and the head, in order."""

    def __call__(self, tokens: Tensor, context: ForwardContext) -> tuple[Tensor, ...]:
        """Hidden states [tokens, hidden_size] of tokens int32 [tokens], after the final norm.

        Of a pipeline stage before the last one two such tensors: the pending output of its last layer and the residual
        stream. Stages after the first look at `context.received` instead of the tokens.
        """

    def logits(self, x: Tensor) -> Tensor | None:
        """From [rows, hidden_size] to [rows, vocab_size] on the rank that samples; None on the others."""


def joined(parts: Sequence[Tensor]) -> Tensor:
    """The tensors that a model gives as one: itself where it is one, else [parts, tokens, hidden_size]."""
    return parts[0] if len(parts) == 1 else torch.stack(list(parts))
