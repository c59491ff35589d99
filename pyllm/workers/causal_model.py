"""The interface of a model: `Decoder` and `TransformersModel` implement it, `ForwardPass` and `ModelRunner` use it."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
from pyllm_kernels import PackedLinear
from pyllm_kernels.tensors import Tensor

from pyllm.workers.devices.device import Device
from pyllm.workers.layers.forward_context import ForwardContext
from pyllm.workers.loaders.weights import WeightReader


class CausalModel(Protocol):
    """The whole model, or one rank's share of it."""

    @property
    def embedding_bytes(self) -> int:
        """Bytes of the packed embedding, and of the head if it is not tied."""

    def load(self, reader: WeightReader) -> None:
        """Fill every parameter.

        Raises:
            ConfigError: a file has shrunk, or does not fit.
        """

    def matrices(self) -> Iterator[PackedLinear]:
        """Every matrix but the embedding and the head, in order."""

    def __call__(self, tokens: Tensor, context: ForwardContext) -> tuple[Tensor, ...]:
        """Hidden states [tokens, hidden_size] of tokens int32 [tokens], after the final norm.

        A pipeline stage before the last one returns tensors of `ModelSpec.stage_widths`, such as the pending output of
        its last layer and the residual stream. Stages after the first read `context.received` instead of the tokens.
        """

    def embedding_of(self, pooled: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """The embedding, of length 1, of a pooled hidden state [hidden_size]; on the last stage.

        Of a classifier, a number for each class.
        """

    def logits(self, x: Tensor) -> Tensor | None:
        """Logits [rows, vocab_size] of hidden states [rows, hidden_size] on the sampling rank; None on the others."""


def joined(parts: Sequence[Tensor], device: Device) -> Tensor:
    """The tensors of a model's output as one: a single tensor unchanged, several side by side, [tokens, width]."""
    return parts[0] if len(parts) == 1 else device.concatenate(parts, 1)
