"""The KV cache's size and memory, its swap space, and the share of it, as of everything, that a rank gets."""

import os
import re
from collections.abc import Callable
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyllm_kernels import select
from pyllm_kernels.tensors import address, dtype_name

from pyllm.errors import ConfigError, ProtocolError
from pyllm.families.kv_layout import KVGroup
from pyllm.machine.memory import Memory
from pyllm.workers.devices.host import HostDevice
from pyllm.workers.kv.host_tier import HostTier
from pyllm.workers.kv.kv_cache import HostPool, KVCache, KVCacheShape, host_blocks_of_rank
from pyllm.workers.layers.rank_group import RankGroup
from pyllm.workers.layers.weight_placement import WeightPlacement
from pyllm.workers.step.batch import IntArray

CPU = HostDevice()
KERNELS = select("auto", "cpu")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_layer_has_aligned_zeroed_memory_of_its_own(dtype: str) -> None:
    shape = KVCacheShape(num_layers=3, block_size=16, num_kv_heads=2, head_dim=24, dtype=dtype)
    cache = KVCache(shape, 5, CPU)
    tensors = [tensor for _, *pair in cache.layers.values() for tensor in pair]
    assert len(tensors) == 6
    assert sum(tensor.nbytes for tensor in tensors) == 5 * shape.block_bytes
    assert address(cache.layers[0].keys) % 64 == 0
    for number, tensor in enumerate(tensors):
        assert (tensor.shape, dtype_name(tensor.dtype), tensor[0].flags.c_contiguous) == ((5, 16, 2, 24), dtype, True)
        assert not tensor.any()
        tensor[...] = number + 1
    assert [int(*np.unique(tensor.astype(int))) for tensor in tensors] == [1, 2, 3, 4, 5, 6]
    assert cache.memory[:, :, 3].flags.c_contiguous, "all layers of a block are together"


# Of 12,000 blocks 197 MB: more than the heap has in one piece of what was used and freed, so that the kernel gives it.
UNTOUCHED = KVCacheShape(num_layers=2, block_size=16, num_kv_heads=2, head_dim=64, dtype="bfloat16")


@pytest.mark.parametrize("num_blocks", [1 << 40, 1 << 55])
def test_more_memory_than_can_be_mapped_is_refused_with_the_bytes(num_blocks: int) -> None:
    size = (UNTOUCHED.block_bytes + 256) * num_blocks  # with room for a token between blocks
    with pytest.raises(ConfigError, match=rf"no memory for a KV cache of {size:,} bytes .*--kv-cache-memory-bytes"):
        KVCache(UNTOUCHED, num_blocks, CPU)


ID = bytes(32)


def host_pool(
    num_blocks: int, num_host_blocks: int, clock: Callable[[], float] = lambda: 0.0
) -> tuple[KVCache, HostPool]:
    shape = KVCacheShape(num_layers=3, block_size=4, num_kv_heads=2, head_dim=8, dtype="bfloat16")
    cache = KVCache(shape, num_blocks, CPU)
    cache.memory[...] = np.random.default_rng(0).standard_normal(cache.memory.shape)
    return cache, HostPool(cache, num_host_blocks, select("reference", "cpu"), clock)


def swaps(moves: list[list[int]]) -> tuple[IntArray, npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Of a plan, on the host and on the device, and the names of what goes out: the numbers of the host blocks."""
    array = np.array(moves, np.int32)
    names = np.array([[host, *[0] * 39] for direction, _, host in moves if direction == 0], np.uint8)
    return array, array, names.ravel()


def test_a_host_pool_keeps_blocks_while_the_cache_is_used_for_others() -> None:
    cache, pool = host_pool(num_blocks=5, num_host_blocks=2)
    assert pool.memory.nbytes * 5 == cache.memory.nbytes * 2
    kept = [(keys[3].copy(), values[3].copy()) for keys, values in cache.memory]
    pool.swap(*swaps([[0, 3, 1]]))
    cache.memory[...] = 0
    pool.swap(*swaps([[0, 4, 0], [1, 2, 1]]))
    for (keys, values), (kept_keys, kept_values) in zip(cache.memory, kept, strict=True):
        assert np.array_equal(keys[2], kept_keys)
        assert np.array_equal(values[2], kept_values)
        assert not keys[[0, 1, 3, 4]].any()


@pytest.mark.parametrize("swap", [[2, 0, 0], [-1, 0, 0], [0, 5, 0], [1, -1, 0], [0, 0, 2], [1, 4, -1]])
def test_a_swap_of_a_block_that_does_not_exist_is_refused_and_nothing_moves(swap: list[int]) -> None:
    cache, pool = host_pool(num_blocks=5, num_host_blocks=2)
    before = cache.memory.copy()
    with pytest.raises(ProtocolError, match=rf"{re.escape(str(swap))} .* 5 device blocks, 2 host blocks"):
        pool.swap(*swaps([[1, 4, 1], swap]))
    assert np.array_equal(cache.memory, before)


def test_names_that_are_not_one_for_each_block_that_goes_out_are_refused_and_nothing_moves() -> None:
    cache, pool = host_pool(num_blocks=5, num_host_blocks=2)
    before = cache.memory.copy()
    moves, on_device, names = swaps([[0, 1, 0], [1, 4, 0]])
    with pytest.raises(ProtocolError, match="39 bytes of names for 1 swaps to the host"):
        pool.swap(moves, on_device, names[:39])
    assert np.array_equal(cache.memory, before)


def test_what_goes_out_counts_in_the_memory_that_outlives_the_pool() -> None:
    cache, _ = host_pool(num_blocks=5, num_host_blocks=0)
    shape = (3, 2, 4, 2, 8)
    descriptor = os.memfd_create("blocks")
    try:
        pool = HostPool(cache, 2, select("reference", "cpu"), tier=HostTier(descriptor, ID, 2, shape, "bfloat16"))
        pool.time_swaps()
        assert HostTier(descriptor, ID, 2, shape, "bfloat16").inventory() == b""
        kept = cache.memory[:, :, 3].copy()
        pool.swap(*swaps([[0, 3, 1]]))
        cache.memory[...] = 0
        tier = HostTier(descriptor, ID, 2, shape, "bfloat16")
        assert tier.inventory() == bytes([1, 0, 0, 0, 1, *[0] * 39])
        HostPool(cache, 2, select("reference", "cpu"), tier=tier).swap(*swaps([[1, 0, 1]]))
        assert np.array_equal(cache.memory[:, :, 0], kept)
    finally:
        os.close(descriptor)


def test_swaps_in_the_wrong_order_are_refused() -> None:
    cache, pool = host_pool(num_blocks=5, num_host_blocks=2)
    before = cache.memory.copy()
    with pytest.raises(ProtocolError, match="a swap from the host before one to it"):
        pool.swap(*swaps([[0, 1, 0], [1, 4, 1], [0, 2, 1]]))
    assert np.array_equal(cache.memory, before)


@pytest.mark.parametrize(("num_blocks", "num_host_blocks", "num_swaps"), [(100, 1, 1), (1, 100, 1), (100, 100, 32)])
def test_swaps_are_timed_and_leave_the_cache_as_it_was(num_blocks: int, num_host_blocks: int, num_swaps: int) -> None:
    rounds = [7.0, 5.0, 4.0, 6.0, 8.0]
    readings = accumulate(second for seconds in rounds for second in (1.0, seconds))
    cache, pool = host_pool(num_blocks, num_host_blocks, lambda: next(readings))
    before = cache.memory.copy()
    assert pool.time_swaps() == 4.0 / num_swaps
    assert np.array_equal(cache.memory, before)


def test_all_ranks_share_the_size_of_the_host_pool() -> None:
    assert host_blocks_of_rank(0, 4, 1 << 40) == 0
    assert [host_blocks_of_rank(1000, ranks, 100) for ranks in (1, 2, 3, 10)] == [10, 5, 3, 1]


def test_a_host_pool_that_cannot_be_is_refused_with_the_numbers() -> None:
    with pytest.raises(ConfigError, match=r"of 1,000 bytes has no room for a block of 100 bytes on each of 11 rank"):
        host_blocks_of_rank(1000, 11, 100)
    memories = [Memory(4000, 5000, "the host"), Memory(1000, 2000, "the container")]
    assert host_blocks_of_rank(2000, 1, 100, lambda: memories) == 20
    with pytest.raises(ConfigError, match=r"of 2,001 bytes is more than the 2,000 .* that the container has"):
        host_blocks_of_rank(2001, 1, 100, lambda: memories)


@given(st.integers(0, 1000), st.integers(1, 9))
def test_shares_cover_everything_once_and_none_is_larger_than_the_first(size: int, ranks: int) -> None:
    shares = [WeightPlacement(RankGroup(rank, ranks), "float32", CPU, KERNELS).share(size) for rank in range(ranks)]
    assert [index for share in shares for index in range(size)[share]] == list(range(size))
    assert all(share.stop - share.start <= shares[0].stop - shares[0].start for share in shares)


def test_layers_of_narrow_heads_share_a_plane() -> None:
    groups = (KVGroup(None, (2,), (1, 8)), KVGroup(16, (0, 1, 3), (2, 2), layers_of_plane=2))
    cache = KVCache(KVCacheShape(2, 4, 1, 8, "float32"), 5, CPU, groups)
    for layer, cached in cache.layers.items():
        cached.keys[3], cached.values[3] = layer + 1, -layer - 1
        assert cached.keys.shape == (5, 4, *groups[cached.group].heads)
    # Layer 2 is of another group, and had the same block before.
    assert set(cache.memory[0, 0, 3].ravel()) == {1.0, 2.0}
    assert set(cache.memory[1, 1, 3].ravel()) == {-4.0, 0.0}
    assert not cache.memory[:, :, [0, 1, 2, 4]].any()
    cache.layers[0].keys[3], cache.layers[1].keys[3] = 7, 8
    assert (cache.layers[1].keys[3] == 8).all()
    assert set(cache.memory[0, 0, 3].ravel()) == {7.0, 8.0}
