"""Matrices split over the ranks, as in Megatron-LM (arXiv 1909.08053). Does not know the layers they serve.

A column-parallel layer gives each rank some of the outputs. The row-parallel layer after it takes them as input and
adds up the ranks' partial results: one exchange for the pair.
"""

import torch
from pyllm_kernels import PackedLinear, graph
from torch import Tensor

from pyllm.workers.layers.packing import MatrixPart, pack
from pyllm.workers.layers.placement import Placement
from pyllm.workers.loaders.weights import WeightReader


class ColumnParallelLinear:
    """One or several matrices with a common input, joined into one; each is split by output rows."""

    packed: tuple[PackedLinear, ...]

    def __init__(self, in_features: int, out_features: tuple[int, ...], placement: Placement) -> None:
        self._placement = placement
        self._shapes = [(size, in_features) for size in out_features]
        self._shares = [placement.share(size) for size in out_features]
        self.sizes = [share.stop - share.start for share in self._shares]

    def load(self, reader: WeightReader, *names: str) -> None:
        """Read the matrices, in the order of `out_features`."""
        matrices = zip(names, self._shapes, self._shares, strict=True)
        self.packed = pack(reader, self._placement, [MatrixPart(name, shape, share) for name, shape, share in matrices])

    def __call__(self, x: Tensor) -> Tensor:  # [tokens, in_features] -> [tokens, sum(sizes)]
        kernels = self._placement.kernels
        if len(self.packed) == 1:
            return kernels.packed_linear(x, self.packed[0])
        products = graph.empty((len(x), sum(self.sizes)), x.dtype, x.device)
        parts = torch.split(products, [packed.out_features for packed in self.packed], dim=-1)
        for packed, part in zip(self.packed, parts, strict=True):
            kernels.packed_linear(x, packed, part)
        return products


class RowParallelLinear:
    """A matrix split by input columns; takes a rank's share of the input and gives the whole output on every rank."""

    packed: PackedLinear

    def __init__(self, in_features: int, out_features: int, placement: Placement) -> None:
        self._placement = placement
        self._shape = (out_features, in_features)
        self._share = placement.share(in_features)

    def load(self, reader: WeightReader, name: str) -> None:
        """Read the matrix."""
        (self.packed,) = pack(reader, self._placement, [MatrixPart(name, self._shape, columns=self._share)])

    def __call__(self, x: Tensor) -> Tensor:  # [tokens, in_features / ranks] -> [tokens, out_features]
        return self._placement.group.sum(self._placement.kernels.packed_linear(x, self.packed))
