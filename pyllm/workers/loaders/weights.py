"""The interface between layers and weight files. Knows no format."""

from typing import Protocol

from torch import Tensor

WHOLE = slice(None)


class WeightReader(Protocol):
    """Fills parameters from a checkpoint, under the names of `pyllm/families/tensors.py`."""

    def read(self, name: str, shape: tuple[int, ...], out: Tensor, rows: slice = WHOLE, columns: slice = WHOLE) -> None:
        """Fill `out`, in its own dtype, with a part of a matrix of `shape`, or with some elements of a vector.

        Raises:
            ConfigError: the file has shrunk since it was described.
        """

    def block_format(self, name: str, shape: tuple[int, int], columns: slice = WHOLE) -> str | None:
        """The quantisation format of these columns of a matrix; None if there is none, or if they cut through a block.

        Raises:
            ConfigError: as for `read`.
        """

    def read_blocks(
        self, name: str, shape: tuple[int, int], rows: slice = WHOLE, columns: slice = WHOLE
    ) -> tuple[str, Tensor]:
        """A quantised part of a matrix: the name of its format, and uint8 [rows, bytes of a row].

        Raises:
            ConfigError: as for `read`; the checkpoint is not quantised in blocks, or the columns cut through one.
        """
