"""Reads weights from a Hugging Face folder: plain arrays, so that a rank's share is a view of the mapped file."""

from collections.abc import Iterable

import numpy as np
from pyllm_kernels import MatrixRows
from pyllm_kernels.tensors import Array, Tensor, numpy_dtype

from pyllm.workers.loaders.tensor_table import DTYPES, RowSlice, TensorTable, rows_of
from pyllm.workers.loaders.transforms import changed, is_scaled, is_transposed, source_rows
from pyllm.workers.loaders.weights import WHOLE, fill_finite


class SafetensorsReader:
    """Reads through `table`; only the pages of the share are touched."""

    def __init__(self, table: TensorTable) -> None:
        self._table = table

    def read(self, name: str, shape: tuple[int, ...], out: Tensor, rows: slice = WHOLE, columns: slice = WHOLE) -> None:
        """See `WeightReader.read`."""
        wanted, (entry, _) = self._view(name, shape, rows), self._table.find(name, shape)
        wanted = wanted[:, columns] if wanted.ndim == 2 else wanted
        fill_finite(name, out, changed(entry, wanted))

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
        entry, content = self._table.find(name, shape)
        row_format = DTYPES[entry.source.type]
        if is_transposed(entry) or is_scaled(entry) or row_format == "float64":
            return MatrixRows.of(changed(entry, self._view(name, shape, rows)[:, columns]))
        start, stop, _ = columns.indices(shape[1])
        first_byte = start * numpy_dtype(row_format).itemsize
        return rows_of(entry, content, row_format, RowSlice(rows, first_byte, stop - start))

    def release(self, names: Iterable[str]) -> None:
        """See `WeightReader.release`."""
        self._table.release(names)

    def _view(self, name: str, shape: tuple[int, ...], rows: slice) -> Array:
        """Some rows of the parameter; float64 becomes float32, as nothing computes with more."""
        entry, _ = self._table.find(name, shape)
        tensor = self._table.elements(entry.source)
        wanted: Array = (tensor.T if is_transposed(entry) else tensor)[source_rows(entry, rows)]
        return wanted.astype(np.float32) if entry.source.type == "F64" else wanted
