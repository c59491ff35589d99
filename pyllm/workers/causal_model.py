"""The interface between a model and what runs it: `Decoder` of the families, and `TransformersModel`."""

from collections.abc import Iterator
from typing import Protocol

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

    def __call__(self, tokens: Tensor, context: ForwardContext) -> Tensor:
        """Hidden states [tokens, hidden_size] of tokens int32 [tokens]."""

    def logits(self, x: Tensor) -> Tensor | None:
        """From [rows, hidden_size] to [rows, vocab_size] on rank 0; None on the others."""
