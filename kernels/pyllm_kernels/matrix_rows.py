"""A matrix as files have it: rows of elements or of quantised blocks, each wherever it lies. Knows no file."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pyllm_kernels import _cpu

BLOCKS = {
    "q8_0": (32, 34),
    "q4_0": (32, 18),
    "q4_1": (32, 20),
    "q5_0": (32, 22),
    "q5_1": (32, 24),
    "iq4_nl": (32, 18),
    "q2_k": (256, 84),
    "q3_k": (256, 110),
    "q4_k": (256, 144),
    "q5_k": (256, 176),
    "q6_k": (256, 210),
    "iq4_xs": (256, 136),
}
"""Features and bytes of a block of GGUF's formats that have kernels: a row may be cut where a block ends."""
ELEMENTS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class MatrixRows:
    """Rows on the CPU, of `in_features` in a format of `BLOCKS` or a dtype of `ELEMENTS`.

    `addresses` is int64 [rows], 0 for a row of zeros; `owners` keeps what they point to where it is.
    """

    format: str
    in_features: int
    addresses: Tensor
    owners: tuple[object, ...]

    @classmethod
    def of(cls, rows: Tensor, weight_format: str = "") -> "MatrixRows":
        """A matrix [rows, in_features], or uint8 [rows, bytes] of a format of `BLOCKS`.

        Raises:
            ValueError: it is no matrix of the format.
        """
        if rows.ndim != 2 or not rows.is_cpu:
            raise ValueError(f"rows are {list(rows.shape)} on {rows.device}: give a matrix on the CPU")
        rows = rows.contiguous()
        addresses = rows.data_ptr() + torch.arange(len(rows)) * rows.stride(0) * rows.element_size()
        if not weight_format:
            return cls(str(rows.dtype).removeprefix("torch."), rows.shape[1], addresses, (rows,))
        if weight_format not in BLOCKS:
            raise ValueError(f"no blocks of {weight_format}: use {', '.join(BLOCKS)}, or floats")
        features, block_bytes = BLOCKS[weight_format]
        num_blocks, rest = divmod(rows.shape[1], block_bytes)
        if rows.dtype is not torch.uint8 or rest:
            raise ValueError(
                f"blocks are {rows.dtype} {list(rows.shape)}: {weight_format} has uint8, {block_bytes} of them a block"
            )
        return cls(weight_format, num_blocks * features, addresses, (rows,))

    def __len__(self) -> int:
        return len(self.addresses)

    def numbers(self) -> Tensor:
        """float32 [rows, in_features]."""
        out = torch.empty(len(self), self.in_features)
        _cpu.read_rows(sources([self]), self.in_features, out.data_ptr())
        return out


def zero_rows(like: MatrixRows, num_rows: int) -> MatrixRows:
    """So many rows of zeros."""
    return MatrixRows(like.format, like.in_features, torch.zeros(num_rows, dtype=torch.int64), ())


def sources(parts: Iterable[MatrixRows]) -> list[tuple[str, int, int]]:
    """The parts as `_cpu` takes them, which must live as long as it uses them."""
    return [(part.format, part.addresses.data_ptr(), len(part)) for part in parts]


def empty_bytes(num_bytes: int) -> Tensor:
    """Memory for a packed matrix, uint8."""
    return torch.empty(num_bytes, dtype=torch.uint8)


def check_alike(parts: Sequence[MatrixRows]) -> int:
    """How many features all parts have.

    Raises:
        ValueError: not all have as many.
    """
    features = {part.in_features for part in parts}
    if len(features) != 1:
        raise ValueError(f"rows of {sorted(features)} features cannot lie one below the other")
    return features.pop()
