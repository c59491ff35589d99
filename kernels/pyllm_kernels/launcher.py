"""Launches of a Triton kernel with known constants, without the cost of Triton's own launch on the host.

Knows no kernel, and imports no Triton.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

# Triton compiles another version for addresses that are no multiples of this.
_ALIGNMENT = 16
_MAX_KINDS = 4096

Grid = tuple[int, int, int]
Number = int | float
Constant = int | float | str | tuple[int, ...] | None


class Launcher:
    """A kernel with constants: `launcher(grid, tensors, numbers)` does what `kernel[grid](...)` does, but quicker.

    The kernel's parameters are tensors, numbers and `tl.constexpr`s, in this order. `constants` has a value for each
    `tl.constexpr`, and Triton's options. A function with `functools.cache` makes a launcher once for the shapes that
    determine its constants. Raises `ValueError` if a parameter after a constant is no constant.

    Triton compiles a version for dtypes, for addresses that are multiples of 16, and for numbers that are 1, multiples
    of 16 or wide. To find the version, it binds parameters by name and makes a text of them: 10 to 20 us a launch. Here
    Triton does that only for the first launch of a kind, and returns the version, which later launches reuse. Its
    interpreter returns none, so there each launch is Triton's own.
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
        if version.grid != grid:  # It is the same for all layers of a step.
            version.grid, version.run = grid, version.compiled[grid]
        version.run(*tensors, *numbers, *self._values)


@dataclass(slots=True)
class _Version:
    """A compiled version; `run` launches it in `grid`, the grid of the last launch."""

    compiled: Any  # Triton's kernel: `compiled[grid](*parameters)`, with constants
    grid: Grid
    run: Callable[..., None]


@functools.lru_cache(_MAX_KINDS, typed=True)  # 1.0 and 1 differ
def _kind_of(number: Number) -> tuple[object, ...]:
    """The kind of a number: Triton compiles one version for numbers of equal kinds."""
    if isinstance(number, float):
        return (float,)
    return (type(number), number == 1, number % _ALIGNMENT == 0, number.bit_length() > 31, number.bit_length() > 63)
