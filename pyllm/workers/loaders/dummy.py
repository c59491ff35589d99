"""Dummy weights, to measure speed without a model's files: small random numbers, the same at every start."""

import zlib
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view
from pyllm_kernels import MatrixRows
from pyllm_kernels.host_copies import fill
from pyllm_kernels.tensors import Array, Tensor, address, dtype_name, numpy_dtype

from pyllm.checkpoint.types import Checkpoint
from pyllm.workers.loaders.tensor_table import DTYPES
from pyllm.workers.loaders.weights import WHOLE

# As in vLLM: large enough that logits differ, small enough that nothing overflows in float16.
_LARGEST = 1e-3
# Rows begin at so many places of a table; adjacent rows are far apart, as the step is this over the golden ratio.
_NUM_PLACES, _STEP = 1 << 20, 648055


class _Part(NamedTuple):
    """A part of a parameter: the indices in a table where its rows begin, and their length."""

    table: Array
    starts: npt.NDArray[np.int64]
    width: int


class DummyReader:
    """Cuts each row out of a table of random numbers, at a place by the parameter's name and the row's index."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._types = {entry.name: entry.source.type for entry in checkpoint.tensors}
        widest = max(entry.shape[-1] for entry in checkpoint.tensors)
        numbers = np.random.default_rng(0).uniform(-_LARGEST, _LARGEST, _NUM_PLACES + widest)
        self._tables = {kind: numbers.astype(numpy_dtype(DTYPES[kind])) for kind in set(self._types.values())}

    def read(self, name: str, shape: tuple[int, ...], out: Tensor, rows: slice = WHOLE, columns: slice = WHOLE) -> None:
        """See `WeightReader.read`."""
        is_vector = len(shape) == 1
        part = self._part(name, (1, *shape), WHOLE, rows) if is_vector else self._part(name, shape, rows, columns)
        numbers = sliding_window_view(part.table, part.width)[part.starts]
        fill(out, numbers[0] if is_vector else numbers)

    def rows(
        self,
        name: str,
        shape: tuple[int, int],
        rows: slice = WHOLE,
        columns: slice = WHOLE,
        keep_quantised: bool = False,
    ) -> MatrixRows:
        """See `WeightReader.rows`; there are no quantised blocks."""
        del keep_quantised
        table, starts, width = self._part(name, shape, rows, columns)
        return MatrixRows(dtype_name(table.dtype), width, address(table) + starts * table.itemsize, (table,))

    def release(self, names: Iterable[str]) -> None:
        """See `WeightReader.release`; there is no file."""

    def _part(self, name: str, shape: tuple[int, ...], rows: slice, columns: slice) -> _Part:
        first, end, _ = columns.indices(shape[1])
        starts = (zlib.crc32(name.encode()) + np.arange(shape[0])[rows] * _STEP) % _NUM_PLACES + first
        return _Part(self._tables[self._types[name]], starts, end - first)
