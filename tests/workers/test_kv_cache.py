"""The KV cache's size and memory, and the share of it, as of everything, that a rank gets."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyllm.workers.kv_cache import KVCache, KVCacheShape
from pyllm.workers.parallel import RankGroup
from pyllm.workers.placement import Placement

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_layer_has_aligned_zeroed_memory_of_its_own(dtype: torch.dtype) -> None:
    shape = KVCacheShape(num_layers=3, block_size=16, num_kv_heads=2, head_dim=24)
    cache = KVCache(shape, 5, Placement(RankGroup(), dtype, CPU))
    tensors = [tensor for pair in cache.layers for tensor in pair]
    assert len(tensors) == 6
    assert sum(tensor.nbytes for tensor in tensors) == 5 * shape.block_bytes(dtype)
    assert cache.layers[0][0].data_ptr() % 64 == 0
    for number, tensor in enumerate(tensors):
        assert (tensor.shape, tensor.dtype, tensor.is_contiguous()) == ((5, 16, 2, 24), dtype, True)
        assert not tensor.any()
        tensor.fill_(number + 1)
    assert [int(tensor.unique()) for tensor in tensors] == [1, 2, 3, 4, 5, 6]


@given(st.integers(0, 1000), st.integers(1, 9))
def test_shares_cover_everything_once_and_none_is_larger_than_the_first(size: int, ranks: int) -> None:
    shares = [Placement(RankGroup(rank, ranks), torch.float32, CPU).share(size) for rank in range(ranks)]
    assert [index for share in shares for index in range(size)[share]] == list(range(size))
    assert all(share.stop - share.start <= shares[0].stop - shares[0].start for share in shares)
