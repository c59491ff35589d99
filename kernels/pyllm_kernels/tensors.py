"""Tensors as the ops and their callers see them: arrays of numpy on a CPU, tensors of torch on a GPU.

Imports neither torch nor a kernel. A dtype is known by its name, such as "bfloat16".
"""

import functools
import sys
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

_DTYPES = {
    name: np.dtype(scalar)
    for name, scalar in {
        "bfloat16": ml_dtypes.bfloat16,
        "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
        "float8_e5m2": ml_dtypes.float8_e5m2,
    }.items()
}

Array: TypeAlias = npt.NDArray[Any]
Floats: TypeAlias = npt.NDArray[np.float32]

Tensor: TypeAlias = Any
"""An array of numpy or a tensor of torch: callers of ops use its shape, dtype, slices and views by `reshape` alone."""


def is_array(tensor: Any) -> bool:
    """Whether a tensor is numpy's."""
    return isinstance(tensor, np.ndarray)


def address(tensor: Tensor) -> int:
    """The address of a tensor's first element."""
    if not is_array(tensor):
        return int(tensor.data_ptr())
    location: int = tensor.__array_interface__["data"][0]
    return location


def copied(tensor: Tensor) -> Tensor:
    """A copy of a tensor, in one piece."""
    if is_array(tensor):
        return tensor.copy()
    return tensor.clone() if tensor.is_contiguous() else tensor.contiguous()  # A clone keeps the order of dimensions.


def split(tensor: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Views of the parts of the second dimension, of these sizes."""
    ends = list(accumulate(sizes))
    return [tensor[:, end - size : end] for size, end in zip(sizes, ends, strict=True)]


def view_as(tensor: Tensor, dtype: str) -> Tensor:
    """The bytes of a tensor as elements of another dtype."""
    kind = numpy_dtype(dtype) if is_array(tensor) else dtype_like(tensor, dtype)
    return tensor.view(kind)


def widened(array: Array) -> Floats:
    """An array's numbers as float32."""
    return array.astype(np.float32)


def rounded(numbers: Floats, like: Array, out: Array | None = None) -> Array:
    """Numbers as elements of the dtype of `like`, to the nearest, halves to even; in `out`, if that is given."""
    elements = numbers.astype(like.dtype)
    if out is None:
        return elements
    out[...] = elements
    return out


def softmax(scores: Array) -> Array:
    """The softmax over the last dimension; a row of minus infinities is NaNs."""
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    normalised: Array = weights / weights.sum(-1, keepdims=True)
    return normalised


def softplus(numbers: Floats) -> Floats:
    """`log(1 + exp(x))`, without overflow."""
    return np.logaddexp(np.float32(0), numbers)


def product(x: Array, weight: Floats, out: Array | None = None) -> Array:
    """`x @ weight.T`, rounded to the dtype of x; in `out`, if that is given.

    Sums are float64: their last bits depend on the number of rows, and get lost in the rounding.
    """
    return rounded((x.astype(np.float64) @ weight.T.astype(np.float64)).astype(np.float32), x, out)


def strides(tensor: Tensor) -> tuple[int, ...]:
    """The strides of a tensor, in elements."""
    if not is_array(tensor):
        return tuple(tensor.stride())
    return tuple(stride // tensor.itemsize for stride in tensor.strides)


def is_contiguous(tensor: Tensor) -> bool:
    """Whether a tensor is in one piece, row by row."""
    return bool(tensor.flags.c_contiguous if is_array(tensor) else tensor.is_contiguous())


@functools.cache  # numpy computes the text of a dtype in Python, which takes microseconds.
def dtype_name(dtype: Any) -> str:
    """The name of a dtype of numpy or torch: "bfloat16" for `torch.bfloat16`."""
    return str(dtype).removeprefix("torch.")


def dtype_like(tensor: Tensor, name: str) -> Any:
    """The dtype of this name in the library of a tensor that is no array."""
    return getattr(sys.modules[type(tensor).__module__.partition(".")[0]], name)


@functools.cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """The dtype of this name: numpy's own, or one of `ml_dtypes`.

    Raises:
        TypeError: there is none.
    """
    return _DTYPES.get(name) or np.dtype(name)
