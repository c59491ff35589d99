"""Launches of one Triton kernel whose constants are known, without what Triton's own launch costs the host each time.

It does not know any kernel, and imports no Triton.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

# Triton compiles another version for addresses that are no multiples of it.
_ALIGNMENT = 16
_MAX_KINDS = 4096

Grid = tuple[int, int, int]
Number = int | float
Constant = int | float | str | None


class Launcher:
    """A kernel with constants: `launcher(grid, tensors, numbers)` does what `kernel[grid](...)` does, but quicker.

    The kernel's parameters are tensors, numbers and `tl.constexpr`s, in this order. `constants` has a value for each of
    the last, and Triton's options. A launcher is made once for the shapes that its constants follow from, by a function
    with `functools.cache`. Raises `ValueError` where a parameter behind a constant is none.

    Triton compiles a version for dtypes, for addresses that are multiples of 16, and for numbers that are 1, multiples
    of 16 or wide. To find the version, it binds parameters by name and makes a text of them: 10 to 20 us a launch. Here
    Triton does that for the first launch of a kind, and returns the version for those that follow. Its interpreter
    returns none, so there each launch is Triton's own.
    """

    __slots__ = ("_constants", "_kernel", "_values", "_versions")

    def __init__(self, kernel: Any, constants: Mapping[str, Constant]) -> None:
        self._kernel = kernel
        self._constants = constants
        parameters = list(inspect.signature(kernel.fn).parameters)
        names = [name for name in parameters if name in constants]
        if parameters[len(parameters) - len(names) :] != names:
            raise ValueError(f"the kernel takes {parameters}, and constants must be the last: these are {names}")
        self._values = tuple(constants[name] for name in names)
        self._versions: dict[tuple[object, ...], _Version] = {}

    def __call__(self, grid: Grid, tensors: tuple[Tensor, ...], numbers: tuple[Number, ...] = ()) -> None:
        addresses, dtypes = 0, []
        for tensor in tensors:
            addresses |= tensor.data_ptr()
            dtypes.append(tensor.dtype)
        kind: tuple[object, ...] = (tensors[0].get_device(), *dtypes, *map(_kind_of, numbers))
        if addresses % _ALIGNMENT:
            kind += tuple(tensor.data_ptr() % _ALIGNMENT == 0 for tensor in tensors)
        version = self._versions.get(kind)
        if version is None:
            compiled = self._kernel[grid](*tensors, *numbers, **self._constants)
            if compiled is not None:
                self._versions[kind] = _Version(compiled, grid, compiled[grid])
            return
        if version.grid != grid:  # The layers of a step have the same.
            version.grid, version.run = grid, version.compiled[grid]
        version.run(*tensors, *numbers, *self._values)


@dataclass(slots=True)
class _Version:
    """`run` launches `compiled` in a grid, the last one that was asked for."""

    compiled: Any  # Triton's: `compiled[grid](*parameters)`, constants too
    grid: Grid
    run: Callable[..., None]


@functools.lru_cache(_MAX_KINDS, typed=True)  # 1.0 is not 1.
def _kind_of(number: Number) -> tuple[object, ...]:
    """Equal for numbers that Triton compiles one version for."""
    if isinstance(number, float):
        return (float,)
    return (type(number), number == 1, number % _ALIGNMENT == 0, number.bit_length() > 31, number.bit_length() > 63)
