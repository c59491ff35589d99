"""Where one rank's share of the model lives. Knows no layer."""

from dataclasses import dataclass

import torch
from pyllm_kernels import Kernels
from torch import Tensor

from pyllm.workers.parallel import RankGroup


@dataclass(frozen=True, slots=True)
class Placement:
    """The rank among its group, where and in which dtype its parameters are, and what its matrices are packed for."""

    group: RankGroup
    dtype: torch.dtype
    device: torch.device
    kernels: Kernels
    quantization: str = "none"

    def empty(self, *shape: int) -> Tensor:
        """Room for weights that are still to be loaded."""
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def share(self, size: int) -> slice:
        """This rank's part of `size` rows or columns; the sizes are equal, the last ranks' may be cut short."""
        part = -(-size // self.group.size)
        return slice(min(self.group.rank * part, size), min((self.group.rank + 1) * part, size))
