"""The exchange of tensors between ranks on GPUs, by torch and NCCL. Knows no layer."""

import logging
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor

from pyllm.workers.layers.one_shot_all_reduce import OneShotAllReduce
from pyllm.workers.layers.rank_rendezvous import Place

logger = logging.getLogger(__name__)


class NcclRanks:
    """An `Exchange` between the ranks that torch has joined; those of a stage are `process_group`, None for all.

    A CUDA graph can hold every collective that was called once before with the same shape: NCCL connects ranks at the
    first call. With `in_rank_order` a row's sum does not depend on the tensor's size; without, it may.
    """

    def __init__(
        self,
        place: Place,
        device: torch.device,
        *,
        in_rank_order: bool = True,
        one_shot: OneShotAllReduce | None = None,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        self._place = place
        self._device = device
        self._process_group = process_group
        self._in_rank_order = in_rank_order
        self._one_shot = one_shot
        self._message: Tensor | None = None
        self._outgoing: Tensor | None = None
        self._sending: list[dist.Work | None] = []
        self._next = 0

    @classmethod
    def join(
        cls, place: Place, device: torch.device, rendezvous: str, *, in_rank_order: bool, only_nccl: bool
    ) -> Self | None:
        """Wait until all ranks have arrived at `rendezvous`, an init_method of torch.distributed; None for one rank."""
        torch.cuda.set_device(device)  # A single rank may also have another GPU than the first, with several cores.
        if place.num_ranks == 1:
            return None
        dist.init_process_group("nccl", init_method=rendezvous, rank=place.rank, world_size=place.num_ranks)
        only_nccl |= place.num_stages > 1  # Sharing memory needs all ranks that have joined.
        if place.rank == 0 and place.size > 1 and (in_rank_order or only_nccl):
            logger.info(
                "all-reduces %s", "gather, and add in rank order" if in_rank_order else "take NCCL, as configured"
            )
        shares = not (in_rank_order or only_nccl)
        one_shot = OneShotAllReduce.join(place.rank, place.size, device) if shares else None
        return cls(place, device, in_rank_order=in_rank_order, one_shot=one_shot, process_group=_group_of_stage(place))

    def sum(self, part: Tensor) -> Tensor:
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
        whole = torch.empty((self._place.size * len(part), *part.shape[1:]), dtype=part.dtype, device=part.device)
        dist.all_gather_into_tensor(whole, part.contiguous(), group=self._process_group)
        return list(torch.split(whole, len(part)))

    def concatenate(self, part: Tensor) -> Tensor | None:
        is_first = self._place.rank % self._place.size == 0
        parts = [torch.empty_like(part) for _ in range(self._place.size)] if is_first else None
        dist.gather(part.contiguous(), parts, group=self._process_group, group_dst=0)
        return None if parts is None else torch.cat(parts, dim=-1)

    def broadcast(self, tensor: Tensor) -> None:
        dist.broadcast(tensor, group=self._process_group, group_src=0)

    def allocate_messages(self, num_messages: int, num_bytes: int) -> None:
        self._message = torch.zeros(num_bytes, dtype=torch.uint8, device=self._device)
        self._outgoing = torch.zeros((num_messages, num_bytes), dtype=torch.uint8, device=self._device)
        self._sending = [None] * num_messages

    def send(self, states: Tensor) -> None:
        assert self._outgoing is not None, "allocate_messages comes first"
        if (earlier := self._sending[self._next]) is not None:
            earlier.wait()
        message = self._outgoing[self._next, : states.nbytes]
        message.view(states.dtype).view(states.shape).copy_(states)
        self._sending[self._next] = dist.isend(message, self._place.rank + self._place.size)
        self._next = (self._next + 1) % len(self._sending)

    def receive(self, states: Tensor) -> None:
        """The stream waits, and not this thread."""
        assert self._message is not None, "allocate_messages comes first"
        message = self._message[: states.nbytes]
        work = dist.irecv(message, self._place.rank - self._place.size)
        assert work is not None, "this rank is in the group"
        work.wait()
        states.copy_(message.view(states.dtype).view(states.shape))


def _group_of_stage(place: Place) -> dist.ProcessGroup | None:
    """The process group of a rank's stage. All ranks must call this, as every rank takes part in making each group."""
    if place.num_stages == 1 or place.size == 1:
        return None
    size = place.size
    groups = [dist.new_group(list(range(stage * size, (stage + 1) * size))) for stage in range(place.num_stages)]
    group = groups[place.rank // size]
    assert not isinstance(group, int), "for a group without this rank, torch returns a number"
    return group
