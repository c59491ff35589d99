"""Per-layer inputs (Gemma 3n and 4): numbers that each layer has of each token, beside the residual stream.

Every rank has all projections whole, as they are small, and a part of the embedding. Knows no other part of a layer.
"""

from collections.abc import Iterator
from math import sqrt

from pyllm_kernels import PackedLinear
from pyllm_kernels.ops.activation import activation
from pyllm_kernels.ops.elementwise import add, scale_and_cap
from pyllm_kernels.tensors import Tensor, numpy_dtype

from pyllm.families.spec import ModelSpec, PerLayerInputSpec
from pyllm.workers.layers.linear import whole_linear
from pyllm.workers.layers.norm import Norm
from pyllm.workers.layers.vocab_embedding import VocabularyParallelEmbedding
from pyllm.workers.layers.weight_placement import WeightPlacement
from pyllm.workers.loaders.weights import WeightReader


class PerLayerInputs:
    """The numbers of all layers, from the tokens and from their embedding."""

    def __init__(self, model: ModelSpec, spec: PerLayerInputSpec, placement: WeightPlacement) -> None:
        features = model.per_layer_features
        self._kernels = placement.kernels
        self.embedding = VocabularyParallelEmbedding(model.vocab_size, features, placement, spec.vocab_size)
        self._projection = whole_linear(model.hidden_size, features, placement)
        self._norm = Norm(spec.norm, spec.size, placement)
        # Rounded to the embedding's dtype, like the factor of the model's embedding.
        self._embedding_scale = float(numpy_dtype(placement.dtype).type(sqrt(spec.size)))
        self._projection_scale = model.hidden_size**-0.5

    def load(self, reader: WeightReader) -> None:
        """Fill every parameter."""
        self.embedding.load(reader, "per_layer_embedding.weight")
        self._projection.load(reader, "per_layer_projection")
        self._norm.load(reader, "per_layer_norm")

    def matrices(self) -> Iterator[PackedLinear]:
        """Every matrix but the embedding."""
        yield from self._projection.packed

    def __call__(self, tokens: Tensor, x: Tensor) -> Tensor:
        """int32 [tokens] and their embedding [tokens, hidden_size] -> [tokens, layers * size]."""
        projected = self._kernels[scale_and_cap](self._projection(x), self._projection_scale)
        both = self._kernels[add](self.embedding(tokens), self._norm(projected), self._embedding_scale)
        return self._kernels[scale_and_cap](both, 0.5**0.5)


class PerLayerInput:
    """The part of a layer that reads its numbers."""

    def __init__(self, spec: PerLayerInputSpec, hidden_size: int, layer: int, placement: WeightPlacement) -> None:
        self._kernels = placement.kernels
        self._activation = spec.activation
        self._columns = slice(layer * spec.size, (layer + 1) * spec.size)
        self._gate = whole_linear(hidden_size, spec.size, placement)
        self._projection = whole_linear(spec.size, hidden_size, placement)
        self._norm = Norm(spec.norm, hidden_size, placement)

    def load(self, reader: WeightReader, prefix: str) -> None:
        """Fill every parameter."""
        self._gate.load(reader, f"{prefix}gate")
        self._projection.load(reader, f"{prefix}projection")
        self._norm.load(reader, f"{prefix}norm")

    def packed(self) -> Iterator[PackedLinear]:
        """Every matrix, in order."""
        yield from (*self._gate.packed, *self._projection.packed)

    def __call__(self, stream: Tensor, inputs: Tensor) -> Tensor:
        """The addition to the residual stream [tokens, hidden_size]; `inputs` are those of all layers."""
        own = inputs[:, self._columns]
        return self._norm(self._projection(self._kernels[activation](self._gate(stream), self._activation, up=own)))
