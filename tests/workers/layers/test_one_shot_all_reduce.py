"""Small all-reduces in one launch: which tensors they take, in which order they add, and between which GPUs."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from pyllm.workers.layers.one_shot_all_reduce import OneShotAllReduce, obstacle_between

LIMIT = 1024


class Peers:
    """The memory of all ranks, of which this process is one; adds up as a GPU does, in rank order."""

    def __init__(self, rank: int, others: Sequence[Tensor]) -> None:
        self.memory = torch.full((LIMIT,), 255, dtype=torch.uint8)
        self._rank, self._others = rank, others
        self.calls = 0

    def add_up(self, part: Tensor, out: Tensor) -> None:
        assert part.data_ptr() == self.memory.data_ptr(), "no other rank can read it there"
        self.calls += 1
        parts = [*self._others[: self._rank], part, *self._others[self._rank :]]
        total = torch.zeros_like(out)
        for each in parts:
            total += each.view(out.shape)
        out.copy_(total)


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((1, 8), torch.bfloat16, True),
        ((63, 8), torch.bfloat16, True),
        ((64, 8), torch.bfloat16, False),  # the limit itself
        ((31, 8), torch.float32, True),
        ((33, 8), torch.float32, False),
        ((1, 8), torch.float16, False),  # Torch has no kernel for it,
        ((1, 8), torch.int32, False),
        ((1, 7), torch.bfloat16, False),  # nor for rows that do not end with 16 bytes.
    ],
)
def test_size_and_dtype_choose(shape: tuple[int, ...], dtype: torch.dtype, expected: bool) -> None:
    one_shot = OneShotAllReduce(torch.empty(LIMIT, dtype=torch.uint8), lambda part, out: None)
    assert one_shot.takes(torch.empty(shape, dtype=dtype)) == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_parts_are_added_in_rank_order_and_the_own_one_stays(rank: int, dtype: torch.dtype) -> None:
    # In bfloat16 and float32 alike, another order gives another sum.
    parts = [torch.full((3, 8), value, dtype=dtype) for value in (1.0, 2.0**30, -(2.0**30))]
    peers = Peers(rank, parts[:rank] + parts[rank + 1 :])
    one_shot = OneShotAllReduce(peers.memory, peers.add_up)
    own = parts[rank].clone()
    total = one_shot.sum(own)
    assert total.tolist() == torch.zeros(3, 8).tolist()
    assert torch.equal(own, parts[rank])
    assert total.data_ptr() != peers.memory.data_ptr()
    # The next sum takes the same memory, and leaves the one before as it is.
    assert one_shot.sum(own + 0).shape == (3, 8)
    assert peers.calls == 2
    assert total.tolist() == torch.zeros(3, 8).tolist()


def test_a_part_may_have_gaps() -> None:
    peers = Peers(0, [torch.ones(2, 8)])
    part = torch.arange(32.0).view(2, 16)[:, ::2]
    assert torch.equal(OneShotAllReduce(peers.memory, peers.add_up).sum(part), part + 1)


def links(*pairs: tuple[int, int]) -> Callable[[int], list[int]]:
    """GPUs each of which has links to all others but for these pairs."""
    return lambda rank: [0 if {(rank, other), (other, rank)} & {*pairs} or other == rank else 6 for other in range(8)]


def unknown(rank: int) -> list[int]:
    raise RuntimeError("NVML was not found\nC++ trace")


@pytest.mark.parametrize(
    ("rank", "size", "strangers", "links_of", "expected"),
    [
        (0, 2, set(), links(), ""),
        (3, 8, set(), links(), ""),
        (0, 3, set(), links((0, 5)), ""),  # GPU 5 is no rank's.
        (0, 2, set(), links((0, 1)), ""),  # Two may do without NVLink,
        (0, 2, set(), unknown, ""),
        (1, 4, set(), links((1, 3)), "no NVLink between GPU 1 and GPUs [3]"),  # and more may not.
        (0, 4, set(), unknown, "NVML does not count the NVLinks: NVML was not found"),
        (1, 2, {0}, links(), "GPU 1 cannot read the memory of GPUs [0]"),
        (0, 9, set(), links(), "for 8 ranks at most, and there are 9"),
    ],
)
def test_between_some_gpus_nccl_takes_all(
    rank: int, size: int, strangers: set[int], links_of: Callable[[int], list[int]], expected: str
) -> None:
    found = obstacle_between(rank, size, lambda own, other: own == rank and other not in strangers, links_of)
    assert expected in found
    assert bool(found) == bool(expected)
