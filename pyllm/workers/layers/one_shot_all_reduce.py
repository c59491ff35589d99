"""All-reduce of small tensors in one launch: each GPU reads the parts of all others, and adds them up in rank order.

For few bytes this is faster than NCCL, which passes a tensor on in several hops. Knows nothing of larger tensors.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor

logger = logging.getLogger(__name__)

# Every rank reads all parts whole: with more ranks, a reduction in two phases is faster from a smaller size on. These
# are vLLM's limits for its one-phase kernel (csrc/custom_all_reduce.cuh), which has no limit for two ranks: they read
# no more than NCCL passes.
_LIMITS = {2: 512 << 10, 4: 512 << 10, 8: 256 << 10}
_DTYPES = {torch.bfloat16, torch.float32}  # of torch's kernel
_VECTOR_BYTES = 16


class OneShotAllReduce:
    """All-reduce of less than `limit` bytes.

    `memory` is uint8; every rank can read the memory of all others. `add_up(part, out)` adds up all ranks' `part`,
    which is in that memory, and is complete when no rank reads it any longer.
    """

    def __init__(self, memory: Tensor, add_up: Callable[[Tensor, Tensor], object]) -> None:
        self._memory = memory
        self._add_up = add_up
        self.limit = memory.nbytes

    @classmethod
    def join(cls, rank: int, size: int, device: torch.device, limit: int | None = None) -> Self | None:
        """Share memory among all ranks, each of which must call this; None on all of them if one cannot.

        It uses torch's symmetric memory: all ranks map each rank's allocation (CUDA's virtual memory). The log says
        whether all-reduces use it. `limit`: bytes; by default the limit for this number of ranks.
        """
        num_bytes = _limit(size) if limit is None else limit
        first = (device.index or 0) - rank  # the GPU of rank 0

        def can_access(own: int, other: int) -> bool:
            return bool(torch.cuda.can_device_access_peer(first + own, first + other))

        obstacle = obstacle_between(rank, size, can_access, lambda own: _links(first + own)[first:])
        return cls.agreed(obstacle, lambda: cls._share(num_bytes, device), rank, size, device)

    @classmethod
    def agreed(
        cls, obstacle: str, share: Callable[[], Self], rank: int, size: int, device: torch.device
    ) -> Self | None:
        """The result of `share` on all ranks; None on all if one has an obstacle, cannot share or sums wrongly."""
        made = None
        # All ranks agree before each collective call, as a rank would wait forever for one that does not call it.
        if _is_everywhere(not obstacle, device):
            try:
                made = share()
            except Exception as error:  # noqa: BLE001 - torch may still change this API; NCCL works without it
                obstacle = f"{type(error).__name__}: {error}".partition("\n")[0]
        is_shared = _is_everywhere(made is not None, device)
        if made is not None and is_shared and not made._adds_up(rank, size):
            obstacle = "GPUs read other numbers from each other's memory than were written there"
        if not is_shared or not _is_everywhere(not obstacle, device):
            made = None
        if obstacle:
            logger.info("all-reduces take NCCL, whatever their size: %s", obstacle)
        elif made is not None and rank == 0:
            logger.info("all-reduces of less than %d KiB take one launch, larger ones NCCL", made.limit >> 10)
        return made

    @classmethod
    def _share(cls, num_bytes: int, device: torch.device) -> Self:
        import torch.distributed._symmetric_memory as symmetric_memory  # It imports Triton, which CPUs do not need.

        memory = symmetric_memory.empty(num_bytes, dtype=torch.uint8, device=device)
        group = dist.group.WORLD
        assert group is not None, "the ranks have not been joined"
        symmetric_memory.rendezvous(memory, group)
        name, kernel = group.group_name, torch.ops.symm_mem.one_shot_all_reduce_out
        return cls(memory, lambda part, out: kernel(part, "sum", name, out))

    def takes(self, part: Tensor) -> bool:
        """Whether it can add up such a tensor. All ranks must agree, so the answer depends on shape and dtype only."""
        return part.nbytes < self.limit and part.dtype in _DTYPES and part.nbytes % _VECTOR_BYTES == 0

    def sum(self, part: Tensor) -> Tensor:
        """The sum of all ranks' tensors: in rank order, and rounded to the dtype after each addition."""
        shared = self._memory[: part.nbytes].view(part.dtype).view(part.shape)
        # Copy first: torch's kernel that also copies signals other ranks before all threads of its block have copied.
        shared.copy_(part)
        total = torch.empty_like(shared)
        self._add_up(shared, total)
        return total

    def _adds_up(self, rank: int, size: int) -> bool:
        """Whether the sum of known numbers is right: with some drivers and chipsets, it is not."""
        numbers = torch.arange(1024, dtype=torch.float32, device=self._memory.device)
        return torch.equal(self.sum(numbers * (rank + 1)), numbers * (size * (size + 1) // 2))


def _limit(size: int) -> int:
    """The size in bytes up to which one launch is faster; 0 if it is unknown for this number of ranks."""
    return next((limit for ranks, limit in _LIMITS.items() if size <= ranks), 0)


def obstacle_between(
    rank: int, size: int, can_access: Callable[[int, int], bool], links_of: Callable[[int], Sequence[int]]
) -> str:
    """The reason why this rank's GPU cannot read the memory of all others fast; empty if it can.

    `links_of` counts the NVLinks of a GPU. GPUs are named by their ranks.
    """
    if not _limit(size):
        return f"one launch is for {max(_LIMITS)} ranks at most, and there are {size}"
    others = [other for other in range(size) if other != rank]
    if far := [other for other in others if not can_access(rank, other)]:
        return f"GPU {rank} cannot read the memory of GPUs {far}"
    try:
        # More than two GPUs without NVLink use NCCL, as in vLLM.
        far = [other for other in others if not links_of(rank)[other]] if size > 2 else []
    except RuntimeError as error:
        return f"NVML does not count the NVLinks: {error}".partition("\n")[0]
    return f"there is no NVLink between GPU {rank} and GPUs {far}" if far else ""


def _links(number: int) -> list[int]:
    """The number of NVLinks from a GPU to each GPU."""
    from torch._C._autograd import DeviceType
    from torch._C._distributed_c10d import _detect_dma_connectivity  # type: ignore[attr-defined]  # torch has no type

    links: list[int] = _detect_dma_connectivity(DeviceType.CUDA, "nvlink").matrix[number]
    return links


def _is_everywhere(is_here: bool, device: torch.device) -> bool:
    """Whether something holds on all ranks."""
    everywhere = torch.tensor([int(is_here)], device=device)
    dist.all_reduce(everywhere, dist.ReduceOp.MIN)
    return bool(everywhere.item())
