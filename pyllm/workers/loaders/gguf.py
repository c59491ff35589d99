"""Reads weights from a GGUF file: views of its rows of elements or quantised blocks."""

import logging
from collections.abc import Iterable

import numpy as np
from pyllm_kernels import GGUF_BLOCKS, MatrixRows
from pyllm_kernels.tensors import Tensor

from pyllm.checkpoint.gguf_types import REQUANTISED_TYPES
from pyllm.errors import ConfigError
from pyllm.workers.loaders.requantise import as_q8_0, ternary_as_q4_0
from pyllm.workers.loaders.tensor_table import RowSlice, TensorTable, rows_of
from pyllm.workers.loaders.transforms import changed, is_transposed, source_rows
from pyllm.workers.loaders.weights import WHOLE, fill_finite

logger = logging.getLogger(__name__)

_ELEMENTS = {"F32": ("float32", 4), "F16": ("float16", 2), "BF16": ("bfloat16", 2)}
# Bytes read at once: temporary arrays fit into the CPU's cache, and the peak of memory stays low.
_CHUNK_BYTES = 1 << 22


class GgufReader:
    """Reads through `table`. Cuts rows and columns in the file where its blocks allow it, else after reading."""

    def __init__(self, table: TensorTable) -> None:
        self._table = table
        self._logged: set[str] = set()

    def read(self, name: str, shape: tuple[int, ...], out: Tensor, rows: slice = WHOLE, columns: slice = WHOLE) -> None:
        """See `WeightReader.read`."""
        num_rows, width = (shape[0], shape[1]) if len(shape) == 2 else (shape[0], 1)
        entry, _ = self._table.find(name, shape)
        wanted = range(num_rows)[rows]
        matrix = out.reshape(len(wanted), -1)
        step = max(1, _CHUNK_BYTES // (4 * width))
        for start in range(0, len(wanted), step):
            chunk = slice(wanted.start + start, wanted.start + min(start + step, len(wanted)))
            numbers = self._rows(name, shape, chunk, columns, keep_quantised=False).numbers()
            fill_finite(name, matrix[start : start + step], changed(entry, numbers))

    def rows(
        self,
        name: str,
        shape: tuple[int, int],
        rows: slice = WHOLE,
        columns: slice = WHOLE,
        keep_quantised: bool = False,
    ) -> MatrixRows:
        """See `WeightReader.rows`; types without kernels are requantised."""
        return self._rows(name, shape, rows, columns, keep_quantised)

    def release(self, names: Iterable[str]) -> None:
        """See `WeightReader.release`."""
        self._table.release(names)

    def _rows(self, name: str, shape: tuple[int, ...], rows: slice, columns: slice, keep_quantised: bool) -> MatrixRows:
        """The rows of a matrix; a vector has one row an element."""
        entry, content = self._table.find(name, shape)
        kind = entry.source.type
        if is_transposed(entry) or (len(shape) == 1 and kind not in _ELEMENTS):
            raise ConfigError(f"tensor {entry.source.name!r} of type {kind} cannot be cut into its elements")
        width = shape[1] if len(shape) == 2 else 1
        start, stop, _ = columns.indices(width)
        row_format, element_bytes = _ELEMENTS.get(kind, (kind.lower(), 0))
        if element_bytes:
            return rows_of(entry, content, row_format, RowSlice(rows, start * element_bytes, stop - start))
        if row_format not in GGUF_BLOCKS:
            stored = content.reshape(entry.source.shape[0], -1)[source_rows(entry, rows)]
            return self._converted(kind, stored, slice(start, stop), keep_quantised)
        features, block_bytes = GGUF_BLOCKS[row_format]
        if not start % features and not stop % features:
            return rows_of(entry, content, row_format, RowSlice(rows, start // features * block_bytes, stop - start))
        if keep_quantised:
            raise _cut_error(entry.source.name, start, stop, width, features)
        return MatrixRows.of(rows_of(entry, content, row_format, RowSlice(rows, 0, width)).numbers()[:, start:stop])

    def _converted(
        self, kind: str, stored: np.ndarray[tuple[int, int], np.dtype[np.uint8]], columns: slice, keep_quantised: bool
    ) -> MatrixRows:
        """Rows of a type that only the gguf package can read, as floats or requantised."""
        import gguf  # Few models need it, and its import takes a third of a second.

        source = gguf.GGMLQuantizationType[kind]
        step = max(1, _CHUNK_BYTES // max(1, 32 * stored.shape[1]))
        chunks = (gguf.quants.dequantize(stored[at : at + step], source) for at in range(0, len(stored), step))
        numbers = (np.ascontiguousarray(chunk[:, columns]) for chunk in chunks)
        if not keep_quantised:
            return MatrixRows.of(np.concatenate(list(numbers)))
        if kind not in self._logged:
            self._logged.add(kind)
            logger.info("tensors of type %s have no kernel, and become %s", kind, REQUANTISED_TYPES[kind])
        return ternary_as_q4_0(numbers) if REQUANTISED_TYPES[kind] == "Q4_0" else as_q8_0(numbers)


def _cut_error(name: str, start: int, stop: int, width: int, features: int) -> ConfigError:
    return ConfigError(
        f"tensor {name!r}: columns {start} to {stop} of {width} cut through its blocks of {features}; use fewer ranks, "
        "or quantization int8"
    )
