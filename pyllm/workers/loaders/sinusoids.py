"""The position embedding that no file has: sines and cosines of each position (arXiv 1706.03762). Knows no layer."""

import math
from collections.abc import Iterable

import numpy as np
from pyllm_kernels import MatrixRows
from pyllm_kernels.tensors import Array, Tensor

from pyllm.workers.loaders.weights import WHOLE, fill_finite


class SinusoidReader:
    """A `WeightReader` of the one matrix: the sines of a position, then its cosines, in float32.

    Row 0 has the angles of the position `first`; the frequencies fall from 1 to 1/10,000, both included.
    """

    def __init__(self, first: int) -> None:
        self._first = first

    def read(self, name: str, shape: tuple[int, ...], out: Tensor, rows: slice = WHOLE, columns: slice = WHOLE) -> None:
        """See `WeightReader.read`."""
        fill_finite(name, out, self._table(*shape)[rows, columns])

    def rows(
        self,
        name: str,
        shape: tuple[int, int],
        rows: slice = WHOLE,
        columns: slice = WHOLE,
        keep_quantised: bool = False,
    ) -> MatrixRows:
        """See `WeightReader.rows`."""
        del name, keep_quantised
        return MatrixRows.of(self._table(*shape)[rows, columns])

    def release(self, names: Iterable[str]) -> None:
        """See `WeightReader.release`; there is no file."""
        del names

    def _table(self, num_positions: int, size: int) -> Array:
        half = size // 2
        steps = np.arange(half, dtype=np.float32) * np.float32(-math.log(10_000) / (half - 1))
        positions = np.arange(self._first, self._first + num_positions, dtype=np.float32)
        angles = np.outer(positions, np.exp(steps))
        return np.concatenate((np.sin(angles), np.cos(angles)), axis=1)
