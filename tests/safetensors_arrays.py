"""Safetensors files as arrays, with the dtypes of `ml_dtypes`, which safetensors' own reader of arrays lacks."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import safetensors.numpy
from pyllm_kernels.tensors import Array, numpy_dtype

from pyllm.workers.loaders.tensor_table import DTYPES

_DTYPES = DTYPES | {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}


def load_file(path: Path | str) -> dict[str, Array]:
    """The tensors of a file by name, which may be changed."""
    content = Path(path).read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    tensors: dict[str, Array] = {}
    for name, entry in json.loads(content[8:start]).items():
        if name != "__metadata__":
            first, end = (start + offset for offset in entry["data_offsets"])
            elements = np.frombuffer(bytearray(content[first:end]), numpy_dtype(_DTYPES[entry["dtype"]]))
            tensors[name] = elements.reshape(entry["shape"])
    return tensors


def save_file(tensors: Mapping[str, Array], path: Path | str, metadata: dict[str, str] | None = None) -> None:
    """Write tensors, which need not be contiguous."""
    safetensors.numpy.save_file({name: tensor.copy() for name, tensor in tensors.items()}, path, metadata)
