"""The transforms of a parameter: its tensor's rows, transposition, and changes of elements. Knows no format."""

from typing import Any

import numpy as np
import numpy.typing as npt

from pyllm.families.tensors import (
    Add,
    Deinterleave,
    GroupRows,
    LastFirst,
    LogOfMagnitude,
    Rows,
    Scale,
    TensorEntry,
    Transpose,
)


def source_rows(entry: TensorEntry, rows: slice) -> slice | npt.NDArray[np.int64]:
    """The rows of the source for some rows of the parameter, in order; a slice unless they are reordered."""
    shape = entry.source.shape[::-1] if is_transposed(entry) else entry.source.shape
    order = np.arange(shape[0])
    is_reordered = False
    for transform in entry.transforms:
        match transform:
            case Rows(start, stop, step):
                order = order[start:stop:step]
            case GroupRows(group, start, stop):
                order = order.reshape(-1, group)[:, start:stop].reshape(-1)
                is_reordered = True
            case LastFirst(group, count):
                order = np.roll(order.reshape(-1, group), count, axis=1).reshape(-1)
                is_reordered = True
            case Deinterleave(head_size, rotary_size):
                heads = order.reshape(-1, head_size)
                pairs = heads[:, :rotary_size]
                order = np.concatenate((pairs[:, ::2], pairs[:, 1::2], heads[:, rotary_size:]), axis=1).reshape(-1)
                is_reordered = True
    order = order[rows]
    if is_reordered or not len(order):
        return order
    return slice(int(order[0]), int(order[-1]) + 1, int(order[1] - order[0]) if len(order) > 1 else 1)


def is_transposed(entry: TensorEntry) -> bool:
    """Whether the source's columns are the parameter's rows."""
    return any(isinstance(transform, Transpose) for transform in entry.transforms)


def is_scaled(entry: TensorEntry) -> bool:
    """Whether the elements are multiplied."""
    return any(isinstance(transform, Scale) for transform in entry.transforms)


def changed(entry: TensorEntry, numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The elements of the parameter from those of its tensor; in float32 where they differ."""
    for transform in entry.transforms:
        match transform:
            case Add(value):
                numbers = numbers.astype(np.float32) + np.float32(value)
            case Scale(value):
                numbers = numbers.astype(np.float32) * np.float32(value)
            case LogOfMagnitude():
                numbers = np.log(np.abs(numbers.astype(np.float32)))
    return numbers
