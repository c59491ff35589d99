"""Reads weights from a Hugging Face folder: plain arrays, so a rank's share is a view of the mapped file."""

import torch
from torch import Tensor

from pyllm.errors import ConfigError
from pyllm.workers.loaders.tensor_table import TensorTable
from pyllm.workers.loaders.transforms import added, check_finite, is_transposed, source_rows
from pyllm.workers.loaders.weights import WHOLE

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class SafetensorsReader:
    """Reads through `table`; only the pages of the share are touched."""

    def __init__(self, table: TensorTable) -> None:
        self._table = table

    def read(self, name: str, shape: tuple[int, ...], out: Tensor, rows: slice = WHOLE, columns: slice = WHOLE) -> None:
        """See `WeightReader.read`."""
        entry, content = self._table.find(name, shape)
        # A tensor may start at any byte of the file: copy it if its elements are not aligned.
        dtype = _DTYPES[entry.source.type]
        aligned = content if content.ctypes.data % dtype.itemsize == 0 else content.copy()
        tensor = torch.from_numpy(aligned).view(dtype).view(entry.source.shape)
        wanted = (tensor.T if is_transposed(entry) else tensor)[source_rows(entry, rows)]
        out.copy_(wanted[:, columns] if wanted.ndim == 2 else wanted)
        check_finite(name, bool(out.sum(dtype=torch.float32).isfinite()))  # one pass, without another tensor
        if offset := added(entry):
            out += offset

    def block_format(self, name: str, shape: tuple[int, int], columns: slice = WHOLE) -> None:
        """See `WeightReader.block_format`."""
        del name, shape, columns

    def read_blocks(
        self, name: str, shape: tuple[int, int], rows: slice = WHOLE, columns: slice = WHOLE
    ) -> tuple[str, Tensor]:
        """See `WeightReader.read_blocks`: these files have none."""
        del shape, rows, columns
        raise ConfigError(f"tensor {name!r} has no quantised blocks: use quantization int8 or none")
