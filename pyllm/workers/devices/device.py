"""The interface of a device: memory, copies to and from the host, and the few things that only the device can do.

`HostDevice` and `TorchDevice` implement it. Imports no torch. Dtypes are named, see `pyllm_kernels.tensors`.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np
import numpy.typing as npt
from pyllm_kernels.tensors import Array, Tensor

Rows = npt.NDArray[np.signedinteger]


class HostCopy(Protocol):
    """A device's tensor on its way to the host: the copy has begun."""

    def is_done(self) -> bool:
        """Whether `wait` would not wait."""

    def wait(self) -> Array:
        """The tensor as an array of the host."""


class Device(Protocol):
    """The place of a rank's tensors. A GPU does all of this in the order of its current stream."""

    @property
    def type(self) -> str:
        """The kind: "cpu" or "cuda"."""

    def __str__(self) -> str:
        """The name that torch has for it: "cpu", "cuda:1"."""

    @property
    def name(self) -> str:
        """The instruction set or the GPU; results depend on it, beside weights and dtype."""

    def empty(self, shape: Sequence[int], dtype: str) -> Tensor:
        """A tensor without content."""

    def zeros(self, shape: Sequence[int], dtype: str) -> Tensor:
        """A tensor of zeros."""

    def from_host(self, array: Array) -> Tensor:
        """An array of the host as a tensor: on a CPU the array itself, on a GPU a copy that this does not wait for."""

    def all_from_host(self, arrays: Sequence[Array]) -> Sequence[Tensor]:
        """Arrays of one dimension, of elements of 4 bytes, as `from_host` gives them; by one copy."""

    def host_copy(self, tensor: Tensor) -> HostCopy:
        """Begin to copy a tensor to the host; on a CPU the result is the tensor itself."""

    def host_room(self, size: int, room: Array | None) -> Array:
        """uint8 [size or more] of the host, to fill for `from_host`: `room` if that is free, or new memory."""

    def take(self, tensor: Tensor, rows: Rows) -> Tensor:
        """A copy of some rows."""

    def assign(self, to: Tensor, targets: Rows, source: Tensor, origins: Rows) -> None:
        """Set `to[targets] = source[origins]`."""

    def concatenate(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        """The tensors one after the other along an axis."""

    def computing(self) -> AbstractContextManager[object]:
        """The context of all computation."""

    def synchronize(self) -> None:
        """Wait until all that has begun is done."""
