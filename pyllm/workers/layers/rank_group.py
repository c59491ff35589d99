"""The ranks that share one model: joining them, and their collectives.

Knows no layer. With one rank nothing is joined, and every collective returns its input.
"""

import os
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor


class RankGroup:
    """Rank `rank` of `size`, with NCCL between GPUs and gloo between CPUs."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank = rank
        self.size = size

    @classmethod
    def join(cls, rank: int, size: int, device: torch.device, rendezvous: str) -> Self:
        """Wait until all ranks of this node have arrived at `rendezvous`, an init_method of torch.distributed."""
        if size > 1:
            if device.type == "cuda":
                torch.cuda.set_device(device)
            else:
                os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            backend = "nccl" if device.type == "cuda" else "gloo"
            dist.init_process_group(backend, init_method=rendezvous, rank=rank, world_size=size)
        return cls(rank, size)

    def sum(self, part: Tensor) -> Tensor:
        """The sum of all ranks' tensors, on every rank.

        On a CPU it adds in rank order: in gloo's own reduction, a row's sum would depend on the size of the tensor.
        """
        if self.size == 1:
            return part
        if part.is_cuda:
            dist.all_reduce(part)
            return part
        total, *others = self.gather(part)
        for other in others:
            total += other
        return total

    def gather(self, part: Tensor) -> list[Tensor]:
        """All ranks' tensors in rank order, on every rank."""
        if self.size == 1:
            return [part]
        parts = [torch.empty(part.shape, dtype=part.dtype, device=part.device) for _ in range(self.size)]
        dist.all_gather(parts, part.contiguous())
        return parts

    def concatenate(self, part: Tensor) -> Tensor | None:
        """All ranks' tensors [rows, columns] side by side in rank order, on rank 0; None on the others."""
        if self.size == 1:
            return part
        parts = [torch.empty_like(part) for _ in range(self.size)] if self.rank == 0 else None
        dist.gather(part.contiguous(), parts, dst=0)
        return None if parts is None else torch.cat(parts, dim=-1)

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Rank 0's tensor; on the other ranks it is written into `tensor`."""
        if self.size > 1:
            dist.broadcast(tensor, src=0)
        return tensor
