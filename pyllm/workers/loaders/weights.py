"""The interface between layers and weight files. Knows no format."""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

import numpy as np
from pyllm_kernels import MatrixRows
from pyllm_kernels.host_copies import fill
from pyllm_kernels.tensors import Array, Tensor, dtype_name, numpy_dtype

from pyllm.errors import ConfigError

WHOLE = slice(None)


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


class WeightReader(Protocol):
    """Fills parameters from a checkpoint, under the names of `pyllm/families/parameter_shapes.py`."""

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


def fill_finite(name: str, out: Tensor, numbers: Array) -> None:
    """Fill `out` with floats of the host, rounded to its dtype.

    Raises:
        ConfigError: a weight is a NaN or an infinity, or becomes one.
    """
    check_finite(name, numbers, dtype_name(out.dtype))
    fill(out, numbers)


def check_finite(name: str, numbers: Array, dtype: str = "float32") -> None:
    """Refuse weights that are not finite.

    Raises:
        ConfigError: a weight is a NaN or an infinity, or becomes one in `dtype`.
    """
    # The bits of a NaN or an infinity are the largest of their sign, and integers are compared faster than floats.
    size = numbers.dtype.itemsize
    largest = np.array([numbers.view(f"{kind}{size}").max(initial=0) for kind in "iu"], f"u{size}").view(numbers.dtype)
    with np.errstate(over="ignore"):
        if not np.isfinite(largest.astype(numpy_dtype(dtype))).all():
            raise not_finite(name)


def not_finite(name: str) -> ConfigError:
    """The error for a parameter that is not finite."""
    return ConfigError(f"parameter {name!r} has a NaN or an infinity: the model's files are damaged")
