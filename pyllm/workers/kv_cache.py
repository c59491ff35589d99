"""The paged KV cache of one rank: its size and its memory. Knows no sequence; block tables are in `slots.py`."""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from pyllm.checkpoint import Architecture
from pyllm.workers.placement import Placement

_ALIGNMENT = 64  # bytes: a cache line, and the widest vector of a CPU


@dataclass(frozen=True, slots=True)
class KVCacheShape:
    """What one rank keeps of each token: all layers, and this rank's key and value heads."""

    num_layers: int
    block_size: int
    num_kv_heads: int
    head_dim: int

    @classmethod
    def of(cls, architecture: Architecture, block_size: int, ranks: int) -> Self:
        """The shape on each of `ranks` equal ranks."""
        num_kv_heads = architecture.num_key_value_heads // ranks
        return cls(architecture.num_hidden_layers, block_size, num_kv_heads, architecture.head_dim)

    def block_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of one block, keys and values of all layers together."""
        return 2 * self.num_layers * self.block_size * self.num_kv_heads * self.head_dim * dtype.itemsize


class KVCache:
    """Keys and values of `num_blocks` blocks; `layers[i]` is a pair [num_blocks, block_size, kv_heads, head_dim].

    All of it starts as zeros: what a padded read of a block that was never written finds must be finite.
    """

    def __init__(self, shape: KVCacheShape, num_blocks: int, placement: Placement) -> None:
        self.num_blocks = num_blocks
        block = (num_blocks, shape.block_size, shape.num_kv_heads, shape.head_dim)
        self.layers: list[tuple[Tensor, Tensor]] = [
            (keys, values) for keys, values in _zeros((shape.num_layers, 2, *block), placement)
        ]


def _zeros(shape: tuple[int, ...], placement: Placement) -> Tensor:
    """Zeros that cost nothing until they are touched: on a CPU the kernel hands out such pages one by one."""
    if placement.device.type != "cpu":
        return torch.zeros(shape, dtype=placement.dtype, device=placement.device)
    num_bytes = math.prod(shape) * placement.dtype.itemsize
    memory = np.zeros(num_bytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return torch.from_numpy(memory[start : start + num_bytes]).view(placement.dtype).view(shape)
