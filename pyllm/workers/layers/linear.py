"""Matrices split over the ranks, as in Megatron-LM (arXiv 1909.08053). Does not know what they compute.

A column-parallel layer gives each rank some of the outputs; the row-parallel layer after it takes them as they are and
adds up the ranks' partial results: one exchange for the pair.
"""

import torch
from pyllm_kernels import PackedLinear
from torch import Tensor

from pyllm.workers.loaders import WeightReader
from pyllm.workers.placement import Placement


class ColumnParallelLinear:
    """One or several matrices of a common input, side by side in one; each is split by output rows."""

    packed: PackedLinear

    def __init__(self, in_features: int, out_features: tuple[int, ...], placement: Placement) -> None:
        self._placement = placement
        self._shapes = [(size, in_features) for size in out_features]
        self._shares = [placement.share(size) for size in out_features]
        self.sizes = [share.stop - share.start for share in self._shares]

    def load(self, reader: WeightReader, *names: str) -> None:
        """Read the matrices, in the order of `out_features`."""
        weight = self._placement.empty(sum(self.sizes), self._shapes[0][1])
        parts = torch.split(weight, self.sizes)
        for name, shape, share, part in zip(names, self._shapes, self._shares, parts, strict=True):
            reader.read(name, shape, part, rows=share)
        self.packed = self._placement.kernels.pack_linear(weight)

    def __call__(self, x: Tensor) -> Tensor:  # [tokens, in_features] -> [tokens, sum(sizes)]
        return self._placement.kernels.packed_linear(x, self.packed)


class RowParallelLinear:
    """A matrix split by input columns; takes a rank's share of the input and gives the whole output on every rank."""

    packed: PackedLinear

    def __init__(self, in_features: int, out_features: int, placement: Placement) -> None:
        self._placement = placement
        self._shape = (out_features, in_features)
        self._share = placement.share(in_features)

    def load(self, reader: WeightReader, name: str) -> None:
        """Read the matrix."""
        weight = self._placement.empty(self._shape[0], self._share.stop - self._share.start)
        reader.read(name, self._shape, weight, columns=self._share)
        self.packed = self._placement.kernels.pack_linear(weight)

    def __call__(self, x: Tensor) -> Tensor:  # [tokens, in_features / ranks] -> [tokens, out_features]
        return self._placement.group.sum(self._placement.kernels.packed_linear(x, self.packed))
