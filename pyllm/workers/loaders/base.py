"""What a layer asks of a file."""

from typing import Protocol

from torch import Tensor

WHOLE = slice(None)


class WeightReader(Protocol):
    """Fills parameters from a checkpoint, under Hugging Face's names."""

    def read(self, name: str, out: Tensor, rows: slice = WHOLE, columns: slice = WHOLE) -> None:
        """Fill `out`, in its own dtype, with a part of a matrix, or with a vector whole.

        Raises:
            ConfigError: the checkpoint has no such tensor, or its shape is not the one that `out` was made for.
        """
