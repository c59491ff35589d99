"""Packs a layer's matrix from its file for the kernels, in the configured precision.

Knows which part of a file a rank needs, but neither the bytes of a format nor the computation of a layer.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import torch
from pyllm_kernels import INT8_BLOCKS, PackedLinear
from torch import Tensor

from pyllm.workers.layers.placement import Placement
from pyllm.workers.loaders.weights import WHOLE, WeightReader


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

    The result is one matrix, or several if a GGUF file has the parts in different formats.

    Raises:
        ConfigError: the file lacks a part, or cannot be cut like this.
    """
    match placement.quantization:
        case "gguf":
            return _pack_blocks(reader, placement, parts, num_padding_rows)
        case "int8":
            return _pack_int8(reader, placement, parts, num_padding_rows)
        case _:
            return (placement.kernels.pack_linear(_read_floats(reader, placement, parts, num_padding_rows)),)


def _pack_int8(
    reader: WeightReader, placement: Placement, parts: Sequence[MatrixPart], num_padding_rows: int
) -> tuple[PackedLinear, ...]:
    """Pack the blocks of the file if the kernels can use them, else floats."""

    def block_format(part: MatrixPart) -> str | None:
        kind = reader.block_format(part.name, part.shape, part.columns)
        return kind if kind in INT8_BLOCKS else None

    packed = []
    for kind, run in groupby(parts, block_format):
        run_parts = list(run)
        padding = num_padding_rows if run_parts[-1] is parts[-1] else 0
        if kind is None:
            packed.append(placement.kernels.pack_int8(_read_floats(reader, placement, run_parts, padding)))
        else:
            blocks = [reader.read_blocks(*part)[1] for part in run_parts]
            packed.append(placement.kernels.pack_int8_blocks(_stack(blocks, padding), kind, placement.dtype))
    return tuple(packed)


def _pack_blocks(
    reader: WeightReader, placement: Placement, parts: Sequence[MatrixPart], num_padding_rows: int
) -> tuple[PackedLinear, ...]:
    runs: list[tuple[str, list[Tensor]]] = []
    for part in parts:
        kind, blocks = reader.read_blocks(*part)
        if not runs or runs[-1][0] != kind:
            runs.append((kind, []))
        runs[-1][1].append(blocks)
    paddings = [0] * (len(runs) - 1) + [num_padding_rows]
    return tuple(
        placement.kernels.pack_blocks(_stack(blocks, padding), kind, placement.dtype)
        for (kind, blocks), padding in zip(runs, paddings, strict=True)
    )


def _stack(blocks: Sequence[Tensor], num_padding_rows: int) -> Tensor:
    return torch.cat([*blocks, blocks[-1].new_zeros(num_padding_rows, blocks[-1].shape[1])])


def _read_floats(
    reader: WeightReader, placement: Placement, parts: Sequence[MatrixPart], num_padding_rows: int
) -> Tensor:
    sizes = [part.share[0] for part in parts]
    weight = placement.empty(sum(sizes) + num_padding_rows, parts[0].share[1])
    for part, out in zip(parts, torch.split(weight[: sum(sizes)], sizes), strict=True):
        reader.read(part.name, part.shape, out, part.rows, part.columns)
    weight[sum(sizes) :] = 0
    return weight
