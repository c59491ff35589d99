"""Matrices split over the ranks, as in Megatron-LM (arXiv 1909.08053). Does not know the layers that use them.

A column-parallel layer computes some of the outputs on each rank. The row-parallel layer after it takes them as input
and adds up the ranks' partial results: one exchange for the pair.
"""

from collections.abc import Sequence

from pyllm_kernels import PackedLinear, graph
from pyllm_kernels.ops.elementwise import add_bias
from pyllm_kernels.ops.packed_linear import packed_linear
from pyllm_kernels.tensors import Tensor, split

from pyllm.workers.adapters.adapter_layer import AdapterLayer
from pyllm.workers.layers.packing import pack
from pyllm.workers.layers.weight_placement import WeightPlacement
from pyllm.workers.loaders.weights import MatrixPart, WeightReader


class ColumnParallelLinear:
    """One or several matrices with a common input, joined into one; each is split by output rows.

    `shares` are this rank's rows of each matrix, if ranks have no equal parts.
    """

    packed: tuple[PackedLinear, ...]

    def __init__(
        self,
        in_features: int,
        out_features: tuple[int, ...],
        placement: WeightPlacement,
        has_bias: bool = False,
        shares: Sequence[slice] | None = None,
    ) -> None:
        self._placement = placement
        self._shapes = [(size, in_features) for size in out_features]
        self._shares = [placement.share(size) for size in out_features] if shares is None else list(shares)
        self.sizes = [share.stop - share.start for share in self._shares]
        self._bias = placement.empty(sum(self.sizes)) if has_bias else None
        self._adapters: AdapterLayer | None = None

    def load(self, reader: WeightReader, *names: str) -> None:
        """Read the matrices and biases, in the order of `out_features`."""
        matrices = list(zip(names, self._shapes, self._shares, strict=True))
        parts = [MatrixPart(f"{name}.weight", shape, share) for name, shape, share in matrices]
        self.packed = pack(reader, self._placement, parts)
        self._adapters = adapter_layer(self._placement, parts)
        if self._bias is not None:
            for (name, shape, share), out in zip(matrices, split(self._bias[None], self.sizes), strict=True):
                reader.read(f"{name}.bias", shape[:1], out[0], share)

    def __call__(self, x: Tensor) -> Tensor:  # [tokens, in_features] -> [tokens, sum(sizes)]
        kernels, packed = self._placement.kernels, self.packed
        products = kernels[packed_linear](x, packed[0]) if len(packed) == 1 else self._multiply_each(x)
        if self._adapters is not None:
            products = self._adapters.add(x, products)
        return products if self._bias is None else kernels[add_bias](products, self._bias)

    def _multiply_each(self, x: Tensor) -> Tensor:
        kernels = self._placement.kernels
        products = graph.empty((len(x), sum(self.sizes)), x)
        parts = split(products, [packed.out_features for packed in self.packed])
        for packed, part in zip(self.packed, parts, strict=True):
            kernels[packed_linear](x, packed, part)
        return products


def whole_linear(in_features: int, out_features: int, placement: WeightPlacement) -> ColumnParallelLinear:
    """A matrix that every rank has whole."""
    return ColumnParallelLinear(in_features, (out_features,), placement, shares=[slice(0, out_features)])


class RowParallelLinear:
    """A matrix split by input columns; takes a rank's share of the input and returns the whole output on every rank."""

    packed: PackedLinear

    def __init__(self, in_features: int, out_features: int, placement: WeightPlacement, has_bias: bool = False) -> None:
        self._placement = placement
        self._shape = (out_features, in_features)
        self._share = placement.share(in_features)
        self._bias = placement.empty(out_features) if has_bias else None
        self._adapters: AdapterLayer | None = None

    def load(self, reader: WeightReader, name: str) -> None:
        """Read the matrix and the bias."""
        part = MatrixPart(f"{name}.weight", self._shape, columns=self._share)
        (self.packed,) = pack(reader, self._placement, [part])
        self._adapters = adapter_layer(self._placement, [part])
        if self._bias is not None:
            reader.read(f"{name}.bias", self._shape[:1], self._bias)

    def __call__(self, x: Tensor) -> Tensor:  # [tokens, in_features / ranks] -> [tokens, out_features]
        kernels, group = self._placement.kernels, self._placement.group
        products = kernels[packed_linear](x, self.packed)
        total = group.sum(products if self._adapters is None else self._adapters.add(x, products))
        return total if self._bias is None else kernels[add_bias](total, self._bias)

    def partial(self, x: Tensor) -> Tensor:
        """This rank's part of the sum, without the bias."""
        products = self._placement.kernels[packed_linear](x, self.packed)
        return products if self._adapters is None else self._adapters.add(x, products)


def adapter_layer(placement: WeightPlacement, parts: Sequence[MatrixPart]) -> AdapterLayer | None:
    """Room for adapters of a linear layer, if the rank has any."""
    adapters = placement.adapters
    return None if adapters is None else adapters.layer(parts, placement.dtype, placement.kernels)
