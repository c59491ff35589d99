"""A layer's matrix, from its file to the form that the kernels multiply with, in the precision that was asked for.

It knows which part of a file a rank wants, and neither what a format's bytes mean nor what a layer computes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from pyllm_kernels import PackedLinear
from torch import Tensor

from pyllm.workers.loaders.base import WHOLE, WeightReader
from pyllm.workers.placement import Placement


class MatrixPart(NamedTuple):
    """A rank's share of a matrix [out_features, in_features] in a file."""

    name: str
    shape: tuple[int, int]
    rows: slice = WHOLE
    columns: slice = WHOLE

    @property
    def share(self) -> tuple[int, int]:
        """Rows and columns of the share."""
        rows, columns = (range(size)[part] for size, part in zip(self.shape, (self.rows, self.columns), strict=True))
        return len(rows), len(columns)


def pack(
    reader: WeightReader, placement: Placement, parts: Sequence[MatrixPart], num_padding_rows: int = 0
) -> tuple[PackedLinear, ...]:
    """Read the parts and pack them, one below the other, with rows of zeros at the end.

    It is one matrix, but where a GGUF file has the parts in several formats.

    Raises:
        ConfigError: the file does not have them, or not so that they can be cut like this.
    """
    kernels = placement.kernels
    if placement.quantization != "gguf":
        weight = _read_floats(reader, placement, parts, num_padding_rows)
        return ((kernels.pack_int8 if placement.quantization == "int8" else kernels.pack_linear)(weight),)
    runs: list[tuple[str, list[Tensor]]] = []
    for part in parts:
        kind, blocks = reader.read_blocks(part.name, part.shape, part.rows, part.columns)
        if not runs or runs[-1][0] != kind:
            runs.append((kind, []))
        runs[-1][1].append(blocks)
    if num_padding_rows:
        runs[-1][1].append(runs[-1][1][-1].new_zeros(num_padding_rows, runs[-1][1][-1].shape[1]))
    return tuple(kernels.pack_blocks(torch.cat(run), kind, placement.dtype) for kind, run in runs)


def _read_floats(
    reader: WeightReader, placement: Placement, parts: Sequence[MatrixPart], num_padding_rows: int
) -> Tensor:
    sizes = [part.share[0] for part in parts]
    weight = placement.empty(sum(sizes) + num_padding_rows, parts[0].share[1])
    for part, out in zip(parts, torch.split(weight[: sum(sizes)], sizes), strict=True):
        reader.read(part.name, part.shape, out, part.rows, part.columns)
    weight[sum(sizes) :] = 0
    return weight
