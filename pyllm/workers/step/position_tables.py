"""Tables of cosines, sines and query scales by position. A kernel applies the rotation."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from pyllm.families.spec import ModelSpec, RopeSpec


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
    def of(cls, spec: ModelSpec, num_positions: int, device: torch.device) -> Self:
        """The tables of a model for `num_positions` positions."""
        return cls(
            tuple(rope_table(rope, num_positions, device) for rope in spec.ropes),
            torch.empty((num_positions, 0), device=device),
            _query_scales(spec, num_positions, device),
        )

    def rotation(self, rope: int | None) -> Tensor:
        """The rotation with this index in `ModelSpec.ropes`; None for a layer without positions."""
        return self.unrotated if rope is None else self.rotations[rope]


def rope_table(rope: RopeSpec, num_positions: int, device: torch.device) -> Tensor:
    """float32 [num_positions, rotary_size]: the cosines of each position's angles, then their sines."""
    frequencies = torch.tensor(rope.inverse_frequencies, dtype=torch.float32)  # [rotary_size / 2]
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), frequencies)
    table = torch.cat((angles.cos(), angles.sin()), dim=-1)
    return (table if rope.attention_factor == 1 else table * rope.attention_factor).to(device)


def _query_scales(spec: ModelSpec, num_positions: int, device: torch.device) -> Tensor | None:
    scaling = spec.attention.query_scaling
    if scaling is None:
        return None
    positions = torch.arange(num_positions, dtype=torch.float32)
    return (1 + scaling.beta * torch.log(1 + torch.floor(positions / scaling.original_length))).to(device)
