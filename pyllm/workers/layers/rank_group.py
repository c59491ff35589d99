"""The ranks that share one model: joining them, and their collectives.

Knows no layer. With one rank there is nothing to join, and every collective returns its input.
"""

import logging
import os
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor

from pyllm.wire.sockets import interface_of
from pyllm.workers.layers.one_shot_all_reduce import OneShotAllReduce

logger = logging.getLogger(__name__)


class RankGroup:
    """Rank `rank` of `size`, with NCCL between GPUs and gloo between CPUs; `process_group` None is all joined ranks.

    A CUDA graph can hold every collective that was called once before with the same shape: NCCL connects ranks at the
    first call. With `in_rank_order` a row's sum does not depend on the tensor's size; without, it may.
    """

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        *,
        in_rank_order: bool = True,
        one_shot: OneShotAllReduce | None = None,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        self._process_group = process_group
        self._in_rank_order = in_rank_order
        self._one_shot = one_shot

    @classmethod
    def join(
        cls,
        rank: int,
        size: int,
        device: torch.device,
        rendezvous: str,
        *,
        num_stages: int = 1,
        batch_invariant: bool = False,
        only_nccl: bool = False,
        host: str = "",
    ) -> Self:
        """Wait until all ranks have arrived at `rendezvous`, an init_method of torch.distributed.

        There are `num_stages` pipeline stages of `size` ranks each, in the order of ranks; the group has the ranks of
        this rank's stage. With `batch_invariant` GPUs add up in rank order, as CPUs do; with `only_nccl`, and with
        several stages, they share no memory. `host` is this machine's address for the other ranks, empty if all of them
        are on this machine.

        Raises:
            ConfigError: no network interface of this machine has that address, or it is no IPv4 address.
        """
        on_gpu = device.type == "cuda"
        if on_gpu:  # A single rank may also have another GPU than the first, if there are several cores.
            torch.cuda.set_device(device)
        if size * num_stages == 1:
            return cls(rank, size)
        if not on_gpu and "GLOO_SOCKET_IFNAME" not in os.environ:
            os.environ["GLOO_SOCKET_IFNAME"] = interface_of(host) if host else "lo"
        backend, world_size = "nccl" if on_gpu else "gloo", size * num_stages
        dist.init_process_group(backend, init_method=rendezvous, rank=rank, world_size=world_size)
        # In gloo's own reduction, a row's sum would depend on the size of the tensor.
        in_rank_order = not on_gpu or batch_invariant
        only_nccl |= num_stages > 1  # Sharing memory needs all ranks that have joined.
        if on_gpu and rank == 0 and size > 1 and (in_rank_order or only_nccl):
            logger.info(
                "all-reduces %s", "gather, and add in rank order" if in_rank_order else "take NCCL, as configured"
            )
        one_shot = None if in_rank_order or only_nccl else OneShotAllReduce.join(rank, size, device)
        stage, tensor_rank = divmod(rank, size)
        group = None if num_stages == 1 or size == 1 else _groups_of_stages(size, num_stages)[stage]
        assert not isinstance(group, int), "a rank is in the group of its stage"
        return cls(tensor_rank, size, in_rank_order=in_rank_order, one_shot=one_shot, process_group=group)

    def sum(self, part: Tensor) -> Tensor:
        """The sum of all ranks' tensors, on every rank; it may be written into `part`."""
        if self.size == 1:
            return part
        if self._in_rank_order:
            total, *others = self.gather(part)
            for other in others:
                total += other
            return total
        if self._one_shot is not None and self._one_shot.takes(part):
            return self._one_shot.sum(part)
        dist.all_reduce(part, group=self._process_group)
        return part

    def gather(self, part: Tensor) -> list[Tensor]:
        """All ranks' tensors in rank order, on every rank: views of one tensor."""
        if self.size == 1:
            return [part]
        whole = torch.empty((self.size * len(part), *part.shape[1:]), dtype=part.dtype, device=part.device)
        dist.all_gather_into_tensor(whole, part.contiguous(), group=self._process_group)
        return list(torch.split(whole, len(part)))

    def concatenate(self, part: Tensor) -> Tensor | None:
        """All ranks' tensors [rows, columns] side by side in rank order, on rank 0; None on the others."""
        if self.size == 1:
            return part
        parts = [torch.empty_like(part) for _ in range(self.size)] if self.rank == 0 else None
        dist.gather(part.contiguous(), parts, group=self._process_group, group_dst=0)
        return None if parts is None else torch.cat(parts, dim=-1)

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Rank 0's tensor; on the other ranks it is written into `tensor`."""
        if self.size > 1:
            dist.broadcast(tensor, group=self._process_group, group_src=0)
        return tensor


def _groups_of_stages(size: int, num_stages: int) -> list[dist.ProcessGroup | int]:
    """The process group of each stage. All ranks must call this, as every rank takes part in making each group.

    For a group without this rank, torch returns a number.
    """
    return [dist.new_group(list(range(stage * size, (stage + 1) * size))) for stage in range(num_stages)]
