"""Matrices split over the ranks, as in Megatron-LM (arXiv 1909.08053). Does not know what they compute.

A column-parallel layer gives each rank some of the outputs; the row-parallel layer after it takes them as they are and
adds up the ranks' partial results: one exchange for the pair.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from pyllm.workers.loaders import WeightReader
from pyllm.workers.placement import Placement


class ColumnParallelLinear:
    """One or several matrices of a common input, side by side in one; each is split by output rows."""

    def __init__(self, in_features: int, out_features: tuple[int, ...], placement: Placement) -> None:
        self._shapes = [(size, in_features) for size in out_features]
        self._shares = [placement.share(size) for size in out_features]
        self.sizes = [share.stop - share.start for share in self._shares]
        self.weight = placement.empty(sum(self.sizes), in_features)

    def load(self, reader: WeightReader, *names: str) -> None:
        """Fill the matrices, in the order of `out_features`."""
        parts = torch.split(self.weight, self.sizes)
        for name, shape, share, part in zip(names, self._shapes, self._shares, parts, strict=True):
            reader.read(name, shape, part, rows=share)

    def __call__(self, x: Tensor) -> Tensor:  # [tokens, in_features] -> [tokens, sum(sizes)]
        return F.linear(x, self.weight)


class RowParallelLinear:
    """A matrix split by input columns; takes a rank's share of the input and gives the whole output on every rank."""

    def __init__(self, in_features: int, out_features: int, placement: Placement) -> None:
        self._group = placement.group
        self._shape = (out_features, in_features)
        self._share = placement.share(in_features)
        self.weight = placement.empty(out_features, self._share.stop - self._share.start)

    def load(self, reader: WeightReader, name: str) -> None:
        """Fill the matrix."""
        reader.read(name, self._shape, self.weight, columns=self._share)

    def __call__(self, x: Tensor) -> Tensor:  # [tokens, in_features / ranks] -> [tokens, out_features]
        return self._group.sum(F.linear(x, self.weight))
