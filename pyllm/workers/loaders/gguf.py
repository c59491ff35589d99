"""Reads weights from a GGUF file: quantised blocks, or floats, dequantised a few hundred rows at a time."""

import gguf
import numpy as np
import numpy.typing as npt
import torch
from pyllm_kernels import BLOCK_BYTES
from torch import Tensor

from pyllm.errors import ConfigError
from pyllm.workers.loaders.tensor_table import TensorTable
from pyllm.workers.loaders.transforms import added, check_finite, is_transposed, source_rows
from pyllm.workers.loaders.weights import WHOLE

# Dequantised at once: temporary arrays fit into the CPU's cache, and the peak of memory stays low.
_CHUNK_BYTES = 1 << 16
_Q8_0 = gguf.GGMLQuantizationType.Q8_0
# Of each block of the formats that have kernels: one float16 or two, of which these bits say that it is no number.
_SCALE_BYTES = {_Q8_0: 2, gguf.GGMLQuantizationType.Q4_0: 2, gguf.GGMLQuantizationType.Q4_1: 4}
_INFINITE = 0x7C00


class GgufReader:
    """Reads through `table`. Rows are cut before they are dequantised, columns after."""

    def __init__(self, table: TensorTable) -> None:
        self._table = table

    def read(self, name: str, shape: tuple[int, ...], out: Tensor, rows: slice = WHOLE, columns: slice = WHOLE) -> None:
        """See `WeightReader.read`."""
        kind, blocks = self._find(name, shape, rows)
        matrix, offset = out.view(len(blocks), -1), added(self._table.find(name, shape)[0])
        step = max(1, _CHUNK_BYTES // blocks.shape[1])
        for start in range(0, len(blocks), step):
            floats = gguf.quants.dequantize(blocks[start : start + step], kind)
            check_finite(name, bool(np.isfinite(floats).all()))
            matrix[start : start + step].copy_(torch.from_numpy(floats[:, columns] + np.float32(offset)))

    def block_format(self, name: str, shape: tuple[int, int], columns: slice = WHOLE) -> str | None:
        """See `WeightReader.block_format`."""
        kind, _ = self._find(name, shape, slice(0))
        group, _ = gguf.GGML_QUANT_SIZES[kind]
        start, stop, _ = columns.indices(shape[1])
        return None if group == 1 or start % group or stop % group else kind.name.lower()

    def read_blocks(
        self, name: str, shape: tuple[int, int], rows: slice = WHOLE, columns: slice = WHOLE
    ) -> tuple[str, Tensor]:
        """See `WeightReader.read_blocks`; formats without kernels are quantised anew, as q8_0."""
        kind, blocks = self._find(name, shape, rows)
        if kind.name.lower() not in BLOCK_BYTES:
            kind, blocks = _Q8_0, _to_q8_0(kind, blocks)
        group, group_bytes = gguf.GGML_QUANT_SIZES[kind]
        start, stop, _ = columns.indices(shape[1])
        if start % group or stop % group or shape[1] % group:
            raise ConfigError(
                f"tensor {name!r}: columns {start} to {stop} of {shape[1]} cut through its groups of {group}; use "
                "fewer ranks, or quantization int8"
            )
        groups = blocks.reshape(len(blocks), -1, group_bytes)[:, start // group : stop // group]
        exponents = groups[..., : _SCALE_BYTES[kind]].copy().view(np.uint16) & _INFINITE
        check_finite(name, not bool((exponents == _INFINITE).any()))
        return kind.name.lower(), torch.from_numpy(np.ascontiguousarray(groups).reshape(len(blocks), -1))

    def _find(
        self, name: str, shape: tuple[int, ...], rows: slice
    ) -> tuple[gguf.GGMLQuantizationType, npt.NDArray[np.uint8]]:
        """A tensor's kind and its bytes, [rows, bytes of a row]; a vector has a row an element."""
        entry, content = self._table.find(name, shape)
        kind = gguf.GGMLQuantizationType[entry.source.type]
        if is_transposed(entry) or (len(shape) == 1 and gguf.GGML_QUANT_SIZES[kind][0] > 1):
            raise ConfigError(f"tensor {entry.source.name!r} of type {kind.name} cannot be cut into its elements")
        blocks = content.reshape(entry.source.shape[0], -1)
        return kind, blocks[source_rows(entry, rows)]


def _to_q8_0(kind: gguf.GGMLQuantizationType, blocks: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    step = max(1, _CHUNK_BYTES // blocks.shape[1])
    chunks = (gguf.quants.dequantize(blocks[start : start + step], kind) for start in range(0, len(blocks), step))
    return np.concatenate([gguf.quants.quantize(chunk, _Q8_0) for chunk in chunks])
