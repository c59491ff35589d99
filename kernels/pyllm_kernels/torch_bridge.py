"""Between numpy's arrays and torch's tensors in the host's memory, without copies. The host's ops do not need it."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyllm_kernels.tensors import dtype_name, numpy_dtype

P = ParamSpec("P")
R = TypeVar("R")

# torch has no arrays of these: they cross as integers of the same width.
_CARRIERS = {1: torch.uint8, 2: torch.int16}


def as_array(tensor: Tensor) -> npt.NDArray[Any]:
    """A tensor's memory as an array; a copy on the host of a tensor that is elsewhere."""
    tensor = tensor.detach().cpu()
    dtype = numpy_dtype(dtype_name(tensor.dtype))
    if dtype.isbuiltin == 1:
        return tensor.numpy()
    return tensor.view(_CARRIERS[dtype.itemsize]).numpy().view(dtype)


def as_tensor(array: npt.NDArray[Any]) -> Tensor:
    """An array's memory as a tensor."""
    dtype = getattr(torch, array.dtype.name)
    if array.dtype.isbuiltin == 1:
        return torch.from_numpy(array)
    carrier = np.uint8 if array.dtype.itemsize == 1 else np.int16
    return torch.from_numpy(array.view(carrier)).view(dtype)


def on_host(function: Callable[P, R]) -> Callable[P, R]:
    """A function of arrays as one that also takes tensors, on any device; results are tensors on that device then.

    Tensors on the host are changed in place; those that are elsewhere get the changed copies.
    """

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        found: list[tuple[Tensor, npt.NDArray[Any]]] = []

        def enter(tensor: Tensor) -> npt.NDArray[Any]:
            found.append((tensor, as_array(tensor)))
            return found[-1][1]

        entered = _mapped((args, kwargs), Tensor, enter)
        if not found:
            return function(*args, **kwargs)
        result = function(*entered[0], **entered[1])
        device = found[0][0].device
        for tensor, array in found:
            if not tensor.is_cpu:
                tensor.copy_(as_tensor(array))
        own = {id(array): tensor for tensor, array in found}
        left: R = _mapped(result, np.ndarray, lambda array: own.get(id(array), as_tensor(array).to(device)))
        return left

    return run


def _mapped(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """The value with each tensor or array in it replaced."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, dict):
        return {key: _mapped(item, kind, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_mapped(item, kind, change) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if is_dataclass(value) and not isinstance(value, type):
        changed = {
            field.name: new
            for field in fields(value)
            if (new := _mapped(old := getattr(value, field.name), kind, change)) is not old
        }
        return replace(value, **changed) if changed else value
    return value
