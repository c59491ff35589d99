"""A layer's matrix, from its file to the form that the kernels multiply with, in the precision that was asked for.

It knows which part of a file a rank wants, and neither what a format's bytes mean nor what a layer computes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from pyllm_kernels import PackedLinear
from torch import Tensor

from pyllm.workers.loaders.base import WHOLE, WeightReader
from pyllm.workers.placement import Placement


@dataclass(frozen=True, slots=True)
class MatrixPart:
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
) -> PackedLinear:
    """Read the parts and pack them as one matrix, one below the other, with rows of zeros at the end.

    Raises:
        ConfigError: the file does not have them, or not so that they can be cut like this.
    """
    kernels = placement.kernels
    if placement.quantization == "gguf":
        blocks = [reader.read_blocks(part.name, part.shape, part.rows, part.columns) for part in parts]
        if num_padding_rows:
            kind, last = blocks[-1]
            blocks[-1] = kind, torch.cat((last, last.new_zeros(num_padding_rows, last.shape[1])))
        return kernels.pack_blocks(blocks, placement.dtype)
    dtype = torch.float32 if placement.quantization == "int8" else placement.dtype
    weight = _read(reader, parts, num_padding_rows, dtype, placement.device)
    if placement.quantization == "int8":
        return kernels.pack_int8(weight, placement.dtype)
    return kernels.pack_linear(weight)


def _read(
    reader: WeightReader, parts: Sequence[MatrixPart], num_padding_rows: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    sizes = [part.share[0] for part in parts]
    weight = torch.empty((sum(sizes) + num_padding_rows, parts[0].share[1]), dtype=dtype, device=device)
    for part, out in zip(parts, torch.split(weight, [*sizes[:-1], sizes[-1] + num_padding_rows]), strict=True):
        reader.read(part.name, part.shape, out[: part.share[0]], part.rows, part.columns)
    weight[sum(sizes) :] = 0
    return weight
