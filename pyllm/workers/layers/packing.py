"""Packs a layer's matrix from its file for the kernels, in the configured precision.

Knows the part of a matrix that a rank needs, but neither the bytes of a format nor the computation of a layer.
"""

from collections.abc import Sequence
from itertools import accumulate, groupby

from pyllm_kernels import (
    GGUF_BLOCKS,
    INT8_BLOCKS,
    MatrixRows,
    NotFiniteError,
    PackedLinear,
    empty_bytes,
    zero_rows,
)
from pyllm_kernels.ops.packed_linear import kept_format, pack_linear, pack_rows
from pyllm_kernels.tensors import Tensor

from pyllm.workers.layers.weight_placement import WeightPlacement
from pyllm.workers.loaders.weights import MatrixPart, WeightReader, not_finite


def pack(
    reader: WeightReader, placement: WeightPlacement, parts: Sequence[MatrixPart], num_padding_rows: int = 0
) -> tuple[PackedLinear, ...]:
    """Read the parts and pack them, stacked by rows, with rows of zeros at the end.

    The result is one matrix, or several if the parts are quantised in different formats.

    Raises:
        ConfigError: the file lacks a part, or cannot be cut like this, or has a number that is not finite.
    """
    if placement.device.type != "cpu" and not _keeps_quantised(placement):
        return (placement.kernels[pack_linear](_read_floats(reader, placement, parts, num_padding_rows)),)
    cache, name = placement.cache, repr((parts, num_padding_rows))
    if cache is not None and (packed := cache.find(name)) is not None:
        return packed
    found = [(part, _read_rows(reader, placement, part)) for part in parts]
    runs = [(kind, list(run)) for kind, run in groupby(found, lambda part: _packed_as(part[1], placement))]
    paddings = [0] * (len(runs) - 1) + [num_padding_rows]
    packed = tuple(
        _pack_run(run, weight_format, placement, padding).moved(placement.placed)
        for ((weight_format, _), run), padding in zip(runs, paddings, strict=True)
    )
    if cache is not None:
        cache.add(name, packed)
    reader.release([part.name for part in parts])
    return packed


def _keeps_quantised(placement: WeightPlacement) -> bool:
    """Whether quantised weights stay in the format of the file, or in the nearest one that the kernels support."""
    return placement.quantization not in {"none", "int8"}


def _read_rows(reader: WeightReader, placement: WeightPlacement, part: MatrixPart) -> MatrixRows:
    if not _keeps_quantised(placement):
        return reader.rows(*part)
    rows = reader.rows(*part, keep_quantised=True)
    if rows.format in GGUF_BLOCKS and not placement.kernels[kept_format](rows):
        return reader.rows(*part)  # They become floats here: from the exact numbers, not from the nearest format.
    return rows


def _packed_as(rows: MatrixRows, placement: WeightPlacement) -> tuple[str, str]:
    """The format to pack rows in, and a key that must be equal for rows in one matrix."""
    if _keeps_quantised(placement) and (kept := placement.kernels[kept_format](rows)):
        scale_features = 0 if rows.scales is None or rows.is_int8 else rows.scales.features
        return kept, f"{rows.format} {scale_features}"
    if placement.quantization == "int8":
        return "int8", rows.format if rows.format in INT8_BLOCKS else ""
    return placement.dtype, ""


def _pack_run(
    run: Sequence[tuple[MatrixPart, MatrixRows]], weight_format: str, placement: WeightPlacement, num_padding_rows: int
) -> PackedLinear:
    rows = [rows for _, rows in run]
    if num_padding_rows:
        rows.append(zero_rows(rows[-1], num_padding_rows))
    try:
        room = empty_bytes if placement.cache is None else placement.cache.room
        return placement.kernels[pack_rows](rows, weight_format, placement.dtype, room)
    except NotFiniteError as error:
        ends = accumulate(len(rows) for _, rows in run)
        raise not_finite(next(part.name for (part, _), end in zip(run, ends, strict=True) if error.row < end)) from None


def _read_floats(
    reader: WeightReader, placement: WeightPlacement, parts: Sequence[MatrixPart], num_padding_rows: int
) -> Tensor:
    sizes = [part.share[0] for part in parts]
    weight = placement.empty(sum(sizes) + num_padding_rows, parts[0].share[1])
    start = 0
    for part, size in zip(parts, sizes, strict=True):
        reader.read(part.name, part.shape, weight[start : start + size], part.rows, part.columns)
        start += size
    weight[start:] = 0
    return weight
