"""Weights of a GGUF file: blocks of quantised numbers, made into floats a few hundred rows at a time."""

import gguf
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyllm.workers.loaders.base import WHOLE
from pyllm.workers.loaders.table import TensorTable

# What is dequantised at once: the temporary arrays stay in the cache, and the peak of memory stays low.
_CHUNK_BYTES = 1 << 16
# llama.cpp's converter stores the two halves of each head of these interleaved, for its own form of RoPE.
_INTERLEAVED = ("q_proj.weight", "k_proj.weight")


class GgufReader:
    """Reads through `table`. Rows are cut before they are dequantised, columns after."""

    def __init__(self, table: TensorTable, head_dim: int) -> None:
        self._table = table
        self._head_dim = head_dim

    def read(self, name: str, shape: tuple[int, ...], out: Tensor, rows: slice = WHOLE, columns: slice = WHOLE) -> None:
        """See `WeightReader.read`."""
        entry, content = self._table.find(name, shape)
        kind = gguf.GGMLQuantizationType[entry.type]
        num_rows = shape[0] if len(shape) == 2 else 1
        blocks = content.reshape(num_rows, -1)[rows]  # [rows, bytes of a row]
        if name.endswith(_INTERLEAVED):
            blocks = _deinterleave(blocks, self._head_dim)
        matrix = out.view(len(blocks), out.shape[-1])
        step = max(1, _CHUNK_BYTES // blocks.shape[1])
        for start in range(0, len(blocks), step):
            floats = gguf.quants.dequantize(blocks[start : start + step], kind)
            matrix[start : start + step].copy_(torch.from_numpy(floats[:, columns]))


def _deinterleave(blocks: npt.NDArray[np.uint8], head_dim: int) -> npt.NDArray[np.uint8]:
    """Rows 0, 2, 4 ... of each head first, then 1, 3, 5 ..., as transformers keeps them."""
    heads = blocks.reshape(-1, head_dim // 2, 2, blocks.shape[1])
    return heads.swapaxes(1, 2).reshape(blocks.shape)
