"""Maps the tensors of a checkpoint. Does not know their element types."""

import mmap
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from pyllm_kernels import MatrixRows, Scales
from pyllm_kernels.tensors import Array, numpy_dtype

from pyllm.checkpoint.types import Checkpoint
from pyllm.errors import ConfigError
from pyllm.families.tensor_map import UNMAPPED
from pyllm.families.tensors import FileTensor, TensorEntry
from pyllm.workers.loaders.transforms import source_rows
from pyllm.workers.loaders.weights import check_finite

DTYPES = {
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F64": "float64",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
_FLOATS = {"F32", "F16", "BF16", "F64"}


class TensorTable:
    """Maps the files privately: pages are read when they are touched, and never written back."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._maps = [_mapped(file) for file in checkpoint.files]
        self._files = [np.frombuffer(content, np.uint8) for content in self._maps]
        self._entries = {entry.name: entry for entry in checkpoint.tensors}

    def find(self, name: str, shape: tuple[int, ...]) -> tuple[TensorEntry, npt.NDArray[np.uint8]]:
        """The entry of a parameter, and the bytes of its source.

        Raises:
            ConfigError: the file has shrunk.
        """
        entry = self._entries[name]
        assert entry.shape == shape, f"{name} has the shape {entry.shape}, not {shape}"
        return entry, self.content(entry.source)

    def content(self, tensor: FileTensor) -> npt.NDArray[np.uint8]:
        """The bytes of a tensor.

        Raises:
            ConfigError: the file has shrunk.
        """
        content = self._files[tensor.file][tensor.offset : tensor.offset + tensor.num_bytes]
        if len(content) != tensor.num_bytes:
            raise ConfigError(f"tensor {tensor.name!r} ends behind the end of its file: was the file changed just now?")
        return content

    def elements(self, tensor: FileTensor) -> Array:
        """A tensor of plain elements in its shape, as a view of the file if it is aligned.

        Raises:
            ConfigError: the file has shrunk.
        """
        # A tensor may start at any byte of the file: copy it if its elements are not aligned.
        content, dtype = self.content(tensor), numpy_dtype(DTYPES[tensor.type])
        aligned = content if content.ctypes.data % dtype.itemsize == 0 else content.copy()
        return aligned.view(dtype).reshape(tensor.shape)

    def unmapped(self) -> dict[str, Array]:
        """The tensors that are no parameters of pyllm's layers, by their names in the file.

        Raises:
            ConfigError: the file has shrunk, or a tensor has a number that is not finite.
        """
        found = {}
        for entry in self._entries.values():
            if entry.name.startswith(UNMAPPED):
                tensor = self.elements(entry.source)
                if entry.source.type in _FLOATS:
                    check_finite(entry.source.name, tensor)
                found[entry.source.name] = tensor
        return found

    def release(self, names: Iterable[str]) -> None:
        """Free the memory of whole pages of these parameters; they are read again when they are touched."""
        for name in names:
            source = self._entries[name].source
            first = -(-source.offset // mmap.PAGESIZE) * mmap.PAGESIZE
            length = source.offset + source.num_bytes - first
            if length >= mmap.PAGESIZE:
                self._maps[source.file].madvise(mmap.MADV_DONTNEED, first, length // mmap.PAGESIZE * mmap.PAGESIZE)


def _mapped(path: str) -> mmap.mmap:
    with Path(path).open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)


class RowSlice(NamedTuple):
    """A part of a tensor's rows: some rows of the parameter, and of each row `in_features` from a byte on."""

    rows: slice
    first_byte: int
    in_features: int


def rows_of(
    entry: TensorEntry, content: npt.NDArray[np.uint8], row_format: str, part: RowSlice, scales: Scales | None = None
) -> MatrixRows:
    """Views of some rows of a tensor, in the order of the parameter; `scales` are those of these rows."""
    num_rows = entry.source.shape[0]
    row_bytes = len(content) // num_rows
    order = source_rows(entry, part.rows)
    addresses = (content.ctypes.data + part.first_byte + np.arange(num_rows, dtype=np.int64) * row_bytes)[order]
    return MatrixRows(row_format, part.in_features, addresses, (content,), scales)
