"""Tables of cosines, sines and query scales by position. A kernel applies the rotation."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
from pyllm_kernels.tensors import Tensor

from pyllm.families.spec import ModelSpec, RopeSpec
from pyllm.workers.devices.device import Device


@dataclass(frozen=True, slots=True)
class PositionTables:
    """Tables with a row for each position.

    - `rotations`: for each of `ModelSpec.ropes` float32 [positions, rotary_size], cosines, then sines.
    - `unrotated`: the table for layers without positions, [positions, 0].
    - `query_scales`: float32 [positions], or None.
    """

    rotations: tuple[Tensor, ...]
    unrotated: Tensor
    query_scales: Tensor | None = None

    @classmethod
    def of(cls, spec: ModelSpec, num_positions: int, device: Device) -> Self:
        """The tables of a model for `num_positions` positions."""
        return cls(
            tuple(device.from_host(rope_table(rope, num_positions)) for rope in spec.ropes),
            device.empty((num_positions, 0), "float32"),
            None if (scales := _query_scales(spec, num_positions)) is None else device.from_host(scales),
        )

    def rotation(self, rope: int | None) -> Tensor:
        """The rotation with this index in `ModelSpec.ropes`; None for a layer without positions."""
        return self.unrotated if rope is None else self.rotations[rope]


def rope_table(rope: RopeSpec, num_positions: int) -> npt.NDArray[np.float32]:
    """float32 [num_positions, rotary_size]: the cosines of each position's angles, then their sines.

    Angles are products in float32, as in the models' training; cosines and sines are computed in float64 and rounded
    once, so that they are the same on all machines.
    """
    frequencies = np.array(rope.inverse_frequencies, np.float32)  # [rotary_size / 2]
    angles = np.outer(np.arange(num_positions, dtype=np.float32), frequencies).astype(np.float64)
    table = np.concatenate((np.cos(angles), np.sin(angles)), axis=-1, dtype=np.float32)
    return table if rope.attention_factor == 1 else table * np.float32(rope.attention_factor)


def _query_scales(spec: ModelSpec, num_positions: int) -> npt.NDArray[np.float32] | None:
    scaling = spec.query_scaling
    if scaling is None:
        return None
    positions = np.arange(scaling.first, scaling.first + num_positions, dtype=np.float32)
    steps = np.floor(positions / np.float32(scaling.original_length))
    logarithms = np.log(1 + steps.astype(np.float64)).astype(np.float32)
    scales: npt.NDArray[np.float32] = 1 + np.float32(scaling.beta) * logarithms
    return scales
