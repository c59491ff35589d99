"""Matrices in the formats of files: rows of elements or of quantised blocks, each at its own address. Knows no file."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pyllm_kernels import _cpu
from pyllm_kernels.tensors import dtype_name

GGUF_BLOCKS = {
    "q8_0": (32, 34),
    "q4_0": (32, 18),
    "q4_1": (32, 20),
    "q5_0": (32, 22),
    "q5_1": (32, 24),
    "iq4_nl": (32, 18),
    "mxfp4": (32, 17),
    "q2_k": (256, 84),
    "q3_k": (256, 110),
    "q4_k": (256, 144),
    "q5_k": (256, 176),
    "q6_k": (256, 210),
    "iq4_xs": (256, 136),
}
"""Features and bytes of a block of GGUF's formats that have kernels: a row may be cut where a block ends."""
FLOAT_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
SCALED_DTYPES = {"int8": torch.int8, "float8_e4m3fn": torch.float8_e4m3fn}
"""Elements of a byte, which are numbers only together with their scales."""


class Scales(NamedTuple):
    """The scales of the elements of some rows.

    `numbers` is float32 [rows, groups], contiguous: one for each `features` elements of a row; the last group may be
    smaller.
    """

    numbers: Tensor
    features: int


@dataclass(frozen=True, slots=True)
class MatrixRows:
    """Rows on the CPU, of `in_features` in a format of `GGUF_BLOCKS` or a dtype of `FLOAT_DTYPES` or `SCALED_DTYPES`.

    `addresses` is int64 [rows], 0 for a row of zeros; `owners` keeps their memory alive.
    """

    format: str
    in_features: int
    addresses: Tensor
    owners: tuple[object, ...]
    scales: Scales | None = None

    def __post_init__(self) -> None:
        if (self.format in SCALED_DTYPES) != (self.scales is not None):
            raise ValueError(f"rows of {self.format}, {'without' if self.scales is None else 'with'} scales")
        if self.scales is not None:
            numbers, features = self.scales
            shape = (len(self), -(-self.in_features // features))
            if numbers.shape != shape or numbers.dtype is not torch.float32 or not numbers.is_contiguous():
                raise ValueError(
                    f"scales are {numbers.dtype} {list(numbers.shape)}: give contiguous float32 {list(shape)}"
                )

    @classmethod
    def of(cls, rows: Tensor, weight_format: str = "") -> "MatrixRows":
        """The rows of a matrix [rows, in_features], or of uint8 [rows, bytes] in a format of `GGUF_BLOCKS`.

        Raises:
            ValueError: `rows` is no matrix of the format.
        """
        if rows.ndim != 2 or not rows.is_cpu:
            raise ValueError(f"rows are {list(rows.shape)} on {rows.device}: give a matrix on the CPU")
        rows = rows.contiguous()
        addresses = rows.data_ptr() + torch.arange(len(rows)) * rows.stride(0) * rows.element_size()
        if not weight_format:
            return cls(dtype_name(rows.dtype), rows.shape[1], addresses, (rows,))
        if weight_format not in GGUF_BLOCKS:
            raise ValueError(f"no blocks of {weight_format}: use {', '.join(GGUF_BLOCKS)}, or floats")
        features, block_bytes = GGUF_BLOCKS[weight_format]
        num_blocks, rest = divmod(rows.shape[1], block_bytes)
        if rows.dtype is not torch.uint8 or rest:
            raise ValueError(
                f"blocks are {rows.dtype} {list(rows.shape)}: {weight_format} has uint8, {block_bytes} of them a block"
            )
        return cls(weight_format, num_blocks * features, addresses, (rows,))

    @classmethod
    def scaled(cls, rows: Tensor, scales: Scales) -> "MatrixRows":
        """The rows of a contiguous matrix [rows, in_features] of a dtype of `SCALED_DTYPES`."""
        addresses = rows.data_ptr() + torch.arange(len(rows)) * rows.shape[1]
        return cls(dtype_name(rows.dtype), rows.shape[1], addresses, (rows,), scales)

    def __len__(self) -> int:
        return len(self.addresses)

    @property
    def is_int8(self) -> bool:
        """Whether the rows are integers with one scale each, which "int8" keeps unchanged."""
        return self.format == "int8" and self.scales is not None and self.scales.numbers.shape[1] == 1

    def numbers(self) -> Tensor:
        """The dequantised numbers, float32 [rows, in_features]."""
        out = torch.empty(len(self), self.in_features)
        _cpu.read_rows(sources([self]), self.in_features, out.data_ptr())
        return out

    def stored(self) -> Tensor:
        """The bytes in the file's format, uint8 [rows, bytes]."""
        out = torch.empty(len(self), self._row_bytes(), dtype=torch.uint8)
        _cpu.copy_rows(sources([self]), self.in_features, out.data_ptr())
        return out

    def _row_bytes(self) -> int:
        if self.format in GGUF_BLOCKS:
            features, block_bytes = GGUF_BLOCKS[self.format]
            return self.in_features // features * block_bytes
        return self.in_features * (FLOAT_DTYPES | SCALED_DTYPES)[self.format].itemsize


def zero_rows(like: MatrixRows, num_rows: int) -> MatrixRows:
    """`num_rows` rows of zeros in the format of `like`."""
    scales = like.scales and Scales(torch.zeros(num_rows, like.scales.numbers.shape[1]), like.scales.features)
    return MatrixRows(like.format, like.in_features, torch.zeros(num_rows, dtype=torch.int64), (), scales)


def sources(parts: Iterable[MatrixRows]) -> list[tuple[str, int, int, int, int]]:
    """The parts as arguments of `_cpu`; keep the parts alive as long as it uses them."""
    return [(part.format, part.addresses.data_ptr(), len(part), *_scales(part)) for part in parts]


def empty_bytes(num_bytes: int) -> Tensor:
    """Memory for a packed matrix, uint8."""
    return torch.empty(num_bytes, dtype=torch.uint8)


def check_alike(parts: Sequence[MatrixRows]) -> int:
    """The number of features of all parts.

    Raises:
        ValueError: the parts have different numbers.
    """
    features = {part.in_features for part in parts}
    if len(features) != 1:
        raise ValueError(f"rows of {sorted(features)} features cannot lie one below the other")
    return features.pop()


def _scales(part: MatrixRows) -> tuple[int, int]:
    return (0, 0) if part.scales is None else (part.scales.numbers.data_ptr(), part.scales.features)
