"""Tensors as the ops and their callers see them: arrays of numpy on a CPU, tensors of torch on a GPU.

Imports neither torch nor a kernel. A dtype is known by its name, such as "bfloat16".
"""

from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

_DTYPES = {
    name: np.dtype(scalar)
    for name, scalar in {
        "bfloat16": ml_dtypes.bfloat16,
        "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
        "float8_e5m2": ml_dtypes.float8_e5m2,
    }.items()
}


Tensor: TypeAlias = Any
"""An array of numpy or a tensor of torch: callers of ops use its shape, dtype, slices and views by `reshape` alone."""


def dtype_name(dtype: Any) -> str:
    """The name of a dtype of numpy or torch: "bfloat16" for `torch.bfloat16`."""
    return str(dtype).removeprefix("torch.")


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The dtype of this name: numpy's own, or one of `ml_dtypes`.

    Raises:
        TypeError: there is none.
    """
    return _DTYPES.get(name) or np.dtype(name)
