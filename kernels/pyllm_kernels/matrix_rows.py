"""Matrices in the formats of files: rows of elements or of quantised blocks, each at its own address. Knows no file."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyllm_kernels import _cpu
from pyllm_kernels.host_copies import host_array
from pyllm_kernels.tensors import Array, Floats, Tensor, address, dtype_name, numpy_dtype

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
    "iq2_xxs": (256, 66),
    "iq2_xs": (256, 74),
    "iq2_s": (256, 82),
    "iq3_xxs": (256, 98),
    "iq3_s": (256, 110),
    "iq1_s": (256, 50),
    "iq1_m": (256, 56),
}
"""Features and bytes of a block of GGUF's formats that have kernels: a row may be cut where a block ends."""
GRID_FORMATS = frozenset({"iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq1_s", "iq1_m"})
"""Formats of `GGUF_BLOCKS` whose integers are looked up in a grid, 4 or 8 at a time."""
FLOAT_DTYPES = {name: numpy_dtype(name) for name in ("float32", "float16", "bfloat16")}
SCALED_DTYPES = {name: numpy_dtype(name) for name in ("int8", "float8_e4m3fn")}
"""Elements of a byte, which are numbers only together with their scales."""
_ALIGNMENT = 64  # a vector of AVX-512, and a cache line


class Scales(NamedTuple):
    """The scales of the elements of some rows.

    `numbers` is float32 [rows, groups], contiguous: one for each `features` elements of a row; the last group may be
    smaller.
    """

    numbers: Floats
    features: int


@dataclass(frozen=True, slots=True)
class MatrixRows:
    """Rows of `in_features` in a format of `GGUF_BLOCKS` or a dtype of `FLOAT_DTYPES` or `SCALED_DTYPES`.

    `addresses` is int64 [rows], 0 for a row of zeros; `owners` keeps their memory alive. Rows of `SCALED_DTYPES` have
    `scales`, others have none: Rust checks it when it reads them.
    """

    format: str
    in_features: int
    addresses: npt.NDArray[np.int64]
    owners: tuple[object, ...]
    scales: Scales | None = None

    @classmethod
    def of(cls, rows: Tensor, weight_format: str = "") -> "MatrixRows":
        """The rows of a matrix [rows, in_features], or of uint8 [rows, bytes] in a format of `GGUF_BLOCKS`.

        Raises:
            ValueError: `rows` is no matrix of the format.
        """
        rows = host_array(rows)
        if rows.ndim != 2:
            raise ValueError(f"rows are {list(rows.shape)}: give a matrix")
        rows = np.ascontiguousarray(rows)
        if not weight_format:
            return cls(dtype_name(rows.dtype), rows.shape[1], _addresses(rows), (rows,))
        if weight_format not in GGUF_BLOCKS:
            raise ValueError(f"no blocks of {weight_format}: use {', '.join(GGUF_BLOCKS)}, or floats")
        features, block_bytes = GGUF_BLOCKS[weight_format]
        num_blocks, rest = divmod(rows.shape[1], block_bytes)
        if dtype_name(rows.dtype) != "uint8" or rest:
            raise ValueError(
                f"blocks are {rows.dtype} {list(rows.shape)}: {weight_format} has uint8, {block_bytes} of them a block"
            )
        return cls(weight_format, num_blocks * features, _addresses(rows), (rows,))

    @classmethod
    def scaled(cls, rows: Tensor, scales: Scales) -> "MatrixRows":
        """The rows of a contiguous matrix [rows, in_features] of a dtype of `SCALED_DTYPES`."""
        rows, scales = host_array(rows), scales._replace(numbers=host_array(scales.numbers))
        return cls(dtype_name(rows.dtype), rows.shape[1], _addresses(rows), (rows,), scales)

    def __len__(self) -> int:
        return len(self.addresses)

    @property
    def is_int8(self) -> bool:
        """Whether the rows are integers with one scale each, which "int8" keeps unchanged."""
        return self.format == "int8" and self.scales is not None and self.scales.numbers.shape[1] == 1

    def numbers(self) -> Floats:
        """The dequantised numbers, float32 [rows, in_features]."""
        out = np.empty((len(self), self.in_features), np.float32)
        _cpu.read_rows(self, out)
        return out

    def stored(self) -> npt.NDArray[np.uint8]:
        """The bytes in the file's format, uint8 [rows, bytes]."""
        out = np.empty((len(self), self._row_bytes()), np.uint8)
        _cpu.copy_rows(self, out)
        return out

    def _row_bytes(self) -> int:
        if self.format in GGUF_BLOCKS:
            features, block_bytes = GGUF_BLOCKS[self.format]
            return self.in_features // features * block_bytes
        return self.in_features * (FLOAT_DTYPES | SCALED_DTYPES)[self.format].itemsize


def zero_rows(like: MatrixRows, num_rows: int) -> MatrixRows:
    """`num_rows` rows of zeros in the format of `like`."""
    scales = like.scales
    if scales is not None:
        scales = scales._replace(numbers=np.zeros((num_rows, scales.numbers.shape[1]), np.float32))
    return MatrixRows(like.format, like.in_features, np.zeros(num_rows, np.int64), (), scales)


def empty_bytes(num_bytes: int) -> npt.NDArray[np.uint8]:
    """Memory for a packed matrix, uint8, aligned for vectors, which numpy's own is not."""
    memory = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    start = -address(memory) % _ALIGNMENT
    return memory[start : start + num_bytes]


def check_alike(parts: Sequence[MatrixRows]) -> int:
    """The number of features of all parts.

    Raises:
        ValueError: the parts have different numbers.
    """
    features = {part.in_features for part in parts}
    if len(features) != 1:
        raise ValueError(f"rows of {sorted(features)} features cannot lie one below the other")
    return features.pop()


def _addresses(rows: Array) -> npt.NDArray[np.int64]:
    offsets: npt.NDArray[np.int64] = np.arange(len(rows)) * (rows.shape[1] * rows.itemsize)
    return offsets + address(rows)
