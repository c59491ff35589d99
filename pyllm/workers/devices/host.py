"""The host as a device: its tensors are arrays of numpy, and copies to and from the host are no copies."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import pyllm_kernels
from pyllm_kernels.tensors import Array, numpy_dtype

from pyllm.workers.devices.device import Rows


@dataclass(frozen=True, slots=True)
class Arrived:
    """An array that is on the host already."""

    array: Array

    def is_done(self) -> bool:
        """Return True."""
        return True

    def wait(self) -> Array:
        """The array."""
        return self.array


class HostDevice:
    """See `Device`."""

    type = "cpu"

    def __str__(self) -> str:
        return self.type

    @property
    def name(self) -> str:
        """The instruction set of the kernels."""
        return pyllm_kernels.instruction_set()

    def empty(self, shape: Sequence[int], dtype: str) -> Array:
        """See `Device.empty`."""
        return np.empty(tuple(shape), numpy_dtype(dtype))

    def zeros(self, shape: Sequence[int], dtype: str) -> Array:
        """See `Device.zeros`."""
        return np.zeros(tuple(shape), numpy_dtype(dtype))

    def from_host(self, array: Array) -> Array:
        """The array itself."""
        return array

    def all_from_host(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """The arrays themselves."""
        return arrays

    def host_copy(self, tensor: Array) -> Arrived:
        """The array itself."""
        return Arrived(tensor)

    def host_room(self, size: int, room: Array | None) -> Array:
        """`room`, or at least twice as much where that is too small."""
        if room is None or size > len(room):
            room = np.empty(max(size, 0 if room is None else 2 * len(room)), np.uint8)
        return room

    def take(self, tensor: Array, rows: Rows) -> Array:
        """See `Device.take`."""
        taken: Array = tensor[rows]
        return taken

    def assign(self, to: Array, targets: Rows, source: Array, origins: Rows) -> None:
        """See `Device.assign`."""
        to[targets] = source[origins]

    def concatenate(self, parts: Sequence[Array], axis: int) -> Array:
        """See `Device.concatenate`."""
        return np.concatenate(parts, axis)

    def computing(self) -> AbstractContextManager[object]:
        """No context."""
        return nullcontext()

    def synchronize(self) -> None:
        """Do nothing: every call waits."""
