"""The interface between layers and weight files. Knows no format."""

from collections.abc import Iterable
from typing import Protocol

from pyllm_kernels import MatrixRows
from pyllm_kernels.tensors import Tensor

from pyllm.errors import ConfigError

WHOLE = slice(None)


class WeightReader(Protocol):
    """Fills parameters from a checkpoint, under the names of `pyllm/families/tensors.py`."""

    def read(self, name: str, shape: tuple[int, ...], out: Tensor, rows: slice = WHOLE, columns: slice = WHOLE) -> None:
        """Fill `out`, in its own dtype, with a part of a matrix of `shape`, or with some elements of a vector.

        Raises:
            ConfigError: the file has shrunk since it was described, or a number is not finite.
        """

    def rows(
        self,
        name: str,
        shape: tuple[int, int],
        rows: slice = WHOLE,
        columns: slice = WHOLE,
        keep_quantised: bool = False,
    ) -> MatrixRows:
        """A part of a matrix in the file's format, for packing. With `keep_quantised`, quantised rows stay quantised.

        Raises:
            ConfigError: the file has shrunk, or the columns cut through blocks that must stay quantised.
        """

    def release(self, names: Iterable[str]) -> None:
        """Release the files' memory for these parameters, after they are packed."""


def check_finite(name: str, is_finite: bool) -> None:
    """Refuse weights that are not finite.

    Raises:
        ConfigError: a weight is a NaN or an infinity.
    """
    if not is_finite:
        raise ConfigError(f"parameter {name!r} has a NaN or an infinity: the model's files are damaged")
