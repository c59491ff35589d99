"""The ranks that share one model: joining them, and the collectives that tensor parallelism needs.

Knows no layer. With one rank nothing is joined and every collective returns its input.
"""

import os
from typing import Self

import pyllm_kernels
import torch
import torch.distributed as dist
from torch import Tensor

from pyllm.config import EngineConfig


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

        On CPU it is added up in rank order, so that a row's sum does not depend on the tensor's size, as it would in
        gloo's own reduction.
        """
        if self.size == 1:
            return part
        if part.is_cuda:
            dist.all_reduce(part)
            return part
        parts = [torch.empty_like(part) for _ in range(self.size)]
        dist.all_gather(parts, part.contiguous())
        total = parts[0]
        for other in parts[1:]:
            total += other
        return total

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


def set_threads(engine: EngineConfig) -> None:
    """Share the CPUs that this process may use evenly among the ranks beside it.

    torch has them, too, only where it computes: its threads spin for a while after each op, in the way of the kernels'.
    """
    num_threads = max(1, len(os.sched_getaffinity(0)) // engine.parallel.tensor_parallel_size)
    torch_computes = (
        engine.device.kernel_backend == "reference"
        or engine.device.attention_backend not in {"auto", "cpu"}
        or engine.model.dtype == "float16"
    )
    torch.set_num_threads(num_threads if torch_computes else 1)
    pyllm_kernels.set_num_threads(num_threads)
