"""The angles of rotary position embeddings (arXiv 2104.09864). The rotation itself is a kernel."""

import torch
from torch import Tensor


def rope_table(head_dim: int, theta: float, num_positions: int, device: torch.device) -> Tensor:
    """float32 [num_positions, head_dim]: the cosines of each position's angles, then their sines."""
    frequencies = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)  # [head_dim / 2]
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), frequencies)
    return torch.cat((angles.cos(), angles.sin()), dim=-1).to(device)
