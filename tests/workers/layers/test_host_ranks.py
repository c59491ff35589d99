"""The collectives of ranks on CPUs, of arrays and of tensors: all kinds of dtypes, by whole numbers that are exact."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from pyllm.config.engine_settings import ParallelConfig
from pyllm.workers.devices.host import HostDevice
from pyllm.workers.layers.host_ranks import HostRanks
from pyllm.workers.layers.rank_group import RankGroup
from pyllm.workers.layers.rank_rendezvous import Place
from pyllm.workers.layers.stage_link import StageLink
from tests.kernels.exchanges import exchanges

DTYPES = (np.float32, ml_dtypes.bfloat16, np.float16)


def as_tensor(array: Any) -> Any:
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def on_each(size: int, num_stages: int, call: Callable[[RankGroup, int], Any]) -> list[Any]:
    """The result of the call on each rank."""
    with exchanges("in_memory", size, num_stages) as ranks, ThreadPoolExecutor(len(ranks)) as pool:

        def own(rank: int) -> Any:
            return call(RankGroup(rank % size, size, HostRanks(ranks[rank], Place(rank, size, num_stages))), rank)

        return list(pool.map(own, range(len(ranks))))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [np.asarray, as_tensor])
def test_collectives_of_arrays_and_tensors(dtype: Any, kind: Callable[[Any], Any]) -> None:
    def part(rank: int, *, transposed: bool = False) -> Any:
        numbers = np.arange(12).reshape(3, 4) + 20 * rank
        return kind(np.asarray(numbers.T if transposed else numbers, dtype))

    def collectives(group: RankGroup, rank: int) -> list[Any]:
        found = [group.sum(part(rank)), group.gather(part(rank)), group.concatenate(part(rank))]
        transposed = part(rank, transposed=True)
        return [*found, group.sum(transposed), group.broadcast(part(rank)), group.gather(part(rank)[:0])]

    for rank, (total, gathered, beside, transposed, first, nothing) in enumerate(on_each(3, 1, collectives)):
        assert type(total) is type(part(0))
        assert total.dtype == part(0).dtype
        expected = 3 * np.arange(12).reshape(3, 4) + 60
        assert total.tolist() == expected.tolist()
        assert transposed.tolist() == expected.T.tolist()
        assert [each.tolist() for each in gathered] == [part(other).tolist() for other in range(3)]
        assert first.tolist() == part(0).tolist()
        assert [len(each) for each in nothing] == [0, 0, 0]
        if rank == 0:
            assert (
                beside.tolist() == np.concatenate([np.asarray(part(other).tolist()) for other in range(3)], 1).tolist()
            )
        else:
            assert beside is None


def test_stages_have_as_many_steps_in_flight_as_there_are_stages() -> None:
    parallel, width, most = ParallelConfig(pipeline_parallel_size=3), 8, 5
    steps = [1, 5, 2, 4, 3, 5, 1]

    def pass_on(group: RankGroup, rank: int) -> list[Any]:
        link = StageLink(rank, parallel, group)
        link.allocate(most, width, "bfloat16", HostDevice())
        found = []
        for number, tokens in enumerate(steps):
            link.receive(tokens)
            states = np.full((most, width), number, ml_dtypes.bfloat16)[:tokens]
            if link.incoming is not None:
                states = link.incoming[:tokens] + ml_dtypes.bfloat16(10)
                found.append(states.tolist())
            if rank < 2:
                link.send(states)
        return found

    first, *others = on_each(1, 3, pass_on)
    assert first == []
    for rank, found in enumerate(others, 1):
        expected = [np.full((tokens, width), number + 10.0 * rank) for number, tokens in enumerate(steps)]
        assert found == [states.tolist() for states in expected]
