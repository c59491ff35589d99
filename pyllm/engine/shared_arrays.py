"""Arrays of a program in shared memory, for the ranks on this machine: a memfd that they open by its path.

Knows no model: the core compares names, shapes and dtypes with its own.
"""

import os
import sys
from collections.abc import Mapping
from mmap import mmap
from typing import Any

import numpy as np

from pyllm.errors import RequestError
from pyllm.wire.messages import SharedArray

_TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_ALIGNMENT = 64


class SharedArrays:
    """Copies of arrays of numpy, or tensors of torch, by the names of tensors in the model's files; `close` frees them.

    Raises:
        RequestError: there is no array, or one is of another kind.
    """

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        found = {name: _as_bytes(name, array) for name, array in arrays.items()}
        if not found:
            raise RequestError("weights are a path, or arrays by the names of tensors: there is no array", "weights")
        self.entries: list[SharedArray] = []
        end = 0
        for name, (kind, shape, content) in found.items():
            start = -(-end // _ALIGNMENT) * _ALIGNMENT
            end = start + content.nbytes
            self.entries.append(SharedArray(name, kind, shape, start, content.nbytes))
        self._file = os.memfd_create("pyllm weights")
        os.ftruncate(self._file, end)
        with mmap(self._file, end) as memory:
            for entry, (_, _, content) in zip(self.entries, found.values(), strict=True):
                memory[entry.offset : entry.offset + entry.num_bytes] = content.tobytes()

    @property
    def path(self) -> str:
        """The path by which other processes of this user open the memory, as long as this process lives."""
        return f"/proc/{os.getpid()}/fd/{self._file}"

    def close(self) -> None:
        """Free the memory once no process has it open."""
        os.close(self._file)


def _as_bytes(name: str, array: Any) -> tuple[str, tuple[int, ...], "np.ndarray[Any, np.dtype[np.uint8]]"]:
    """The type, the shape and the bytes of an array or tensor."""
    if not isinstance(name, str):
        raise RequestError(f"weights are arrays by the names of tensors, got the name {name!r:.80}", "weights")
    if type(array).__module__.partition(".")[0] == "torch":
        torch: Any = sys.modules["torch"]  # The caller's, which has made the tensor.
        tensor = array.detach().cpu().contiguous()
        kind, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
        content = tensor.reshape(-1).view(torch.uint8).numpy()
    elif isinstance(array, np.ndarray):
        kind, shape = array.dtype.name, array.shape
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    else:
        raise RequestError(f"{name!r:.200} is no array of numpy or tensor of torch: {type(array).__name__}", "weights")
    if kind not in _TYPES:
        raise RequestError(f"{name!r:.200} has the dtype {kind}: give {', '.join(_TYPES)}", "weights")
    return _TYPES[kind], shape, content
