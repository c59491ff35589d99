"""Paged attention and the cache write on a CPU: mixed dtypes, and a result that its own row alone decides."""

from dataclasses import replace

import ml_dtypes
import pyllm_kernels
import pytest
import torch
from pyllm_kernels import KVScales, select
from pyllm_kernels.gpu.paged_attention import attention
from pyllm_kernels.ops.paged_attention import paged_attention
from pyllm_kernels.ops.rope_and_kv_write import rope_and_kv_write

from tests.kernels.paged import PagedBatch, Shape, paged_batch

CPU = torch.device("cpu")
KERNELS = select("cpu", "cpu")
SPLIT = 512


def attend(batch: PagedBatch) -> torch.Tensor:
    return KERNELS[paged_attention](batch.query, batch.key_cache, batch.value_cache, batch.metadata, batch.layer)


@pytest.mark.parametrize(
    ("query_dtype", "cache_dtype", "tolerance"),
    # Sums are float32: what is rounded is the output, to half a unit of 2^-7 in bfloat16 and of 2^-10 in float16.
    [
        (torch.float32, torch.float32, 1e-5),
        (torch.float32, torch.bfloat16, 1e-5),
        (torch.bfloat16, torch.float32, 1e-2),
        (torch.bfloat16, torch.bfloat16, 1e-2),
        (torch.float16, torch.float16, 1e-3),
        (torch.float16, torch.bfloat16, 1e-3),
        (torch.float32, torch.float16, 1e-5),
    ],
    ids=str,
)
@pytest.mark.parametrize("head_dim", [16, 64, 80, 33])
def test_queries_and_caches_of_any_dtype(
    query_dtype: torch.dtype, cache_dtype: torch.dtype, tolerance: float, head_dim: int
) -> None:
    shape = Shape(heads=6, kv_heads=2, head_dim=head_dim, block_size=4, dtype=cache_dtype)
    batch = paged_batch([(1, 70), (33, 5), (1, 0), (3, SPLIT - 1)], shape, CPU)
    batch = replace(batch, query=batch.query.to(query_dtype))
    output = attend(batch)
    assert output.dtype == query_dtype
    torch.testing.assert_close(output.double(), batch.expected(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("cache_dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("block_size", "window"), [(1, None), (16, None), (1024, None), (16, 7), (16, 100), (4, SPLIT + 1), (1, SPLIT + 70)]
)
def test_a_token_is_the_same_in_any_chunk_and_on_any_threads(
    cache_dtype: torch.dtype, block_size: int, window: int | None
) -> None:
    shape = Shape(heads=9, kv_heads=3, head_dim=64, block_size=block_size, dtype=cache_dtype)
    length = SPLIT + 75
    batch = paged_batch([(length, 0)], shape, CPU).windowed(window, None if window is None else 4.0)
    batch = batch.with_sinks() if block_size == 16 else batch.with_slopes()
    batch = replace(batch, query=batch.query.float())
    together = attend(batch)
    before = pyllm_kernels.num_threads()
    try:
        for num_threads in (1, 2, 3):
            pyllm_kernels.set_num_threads(num_threads)
            for chunk in (1, 2, 5, 64, 100, length):
                assert torch.equal(attend(batch.tail(chunk)), together[-chunk:]), (num_threads, chunk)
    finally:
        pyllm_kernels.set_num_threads(before)


def test_rows_are_the_same_alone_and_among_others() -> None:
    rows = [(1, context) for context in range(0, 320, 10)] + [(40, 30), (1, 3 * SPLIT)]
    batch = paged_batch(rows, Shape(heads=9, kv_heads=3, dtype=torch.bfloat16), CPU)
    together = attend(batch)
    for row in range(len(rows)):
        assert torch.equal(attend(batch.row(row)), together[batch.tokens_of(row)])


@pytest.mark.parametrize("cache_dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_what_is_cached_is_rounded_to_the_cache(dtype: torch.dtype, cache_dtype: torch.dtype) -> None:
    heads, kv_heads, head_dim = 3, 2, 40
    query, key, value = torch.randn(5, heads + 2 * kv_heads, head_dim).to(dtype).split([heads, kv_heads, kv_heads], 1)
    caches = torch.full((2, 4, 4, kv_heads, head_dim), -7.0, dtype=cache_dtype)
    positions, cos_sin = torch.arange(5, dtype=torch.int32), torch.randn(8, head_dim)
    cells = torch.tensor([15, 0, -1, 7, 8], dtype=torch.int32)
    rotated = query.clone(), key.clone()
    reference = torch.full_like(caches, -7.0, dtype=dtype)
    select("reference", "cpu")[rope_and_kv_write](*rotated, value, positions, cos_sin, cells, *reference)
    KERNELS[rope_and_kv_write](query, key, value, positions, cos_sin, cells, *caches)
    # One product is fused with a sum here, and is not there.
    tolerance = {"atol": 1e-6, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 1e-2, "rtol": 1e-2}
    torch.testing.assert_close(query, rotated[0], **tolerance)
    torch.testing.assert_close(key, rotated[1], **tolerance)
    written = cells[cells >= 0].long()
    assert torch.equal(caches[0].flatten(0, 1)[written], key[cells >= 0].to(cache_dtype))
    assert torch.equal(caches[1].flatten(0, 1)[written], value[cells >= 0].to(cache_dtype))
    assert (caches == -7).sum() == (16 - len(written)) * 2 * kv_heads * head_dim


def test_what_a_pointer_cannot_say_is_checked() -> None:
    batch = paged_batch([(2, 3)], Shape(heads=4, kv_heads=2, head_dim=16), CPU)
    metadata = batch.metadata
    for change, message in (
        ({"query": batch.query.transpose(0, 1)}, "query is of shape .* with strides .*: give contiguous rows"),
        ({"query": batch.query[:, :3]}, "3 query heads over 2 KV heads: each of those must serve as many of these"),
        ({"value_cache": batch.value_cache[1:]}, r"value_cache is of shape .*: it must be of"),
        ({"value_cache": batch.value_cache.bfloat16()}, "value_cache is bfloat16: give float32"),
        ({"key_cache": batch.key_cache.transpose(0, 1)}, "key_cache is of shape .*: give blocks that are whole tokens"),
        ({"metadata": replace(metadata, slots=metadata.slots.long())}, "slots is int64: give int32"),
        ({"metadata": replace(metadata, query_starts=metadata.slots)}, r"query_starts is of shape \[1\]: it must be"),
        (
            {"metadata": replace(metadata, block_tables=metadata.block_tables.T.contiguous().T)},
            "give a contiguous array",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            attend(replace(batch, **change))
    metadata.sequence_lengths[0] = 1000
    with pytest.raises(IndexError, match="length of the sequence of row 0 is 1000: it must be from 2 to 48"):
        attend(batch)


def test_caches_in_fp8_are_refused() -> None:
    batch = paged_batch([(1, 5)], Shape(), CPU)
    caches = [cache.numpy().astype(ml_dtypes.float8_e4m3fn) for cache in (batch.key_cache, batch.value_cache)]
    with pytest.raises(ValueError, match="key_cache is float8_e4m3fn: give float32, bfloat16 or float16"):
        KERNELS[paged_attention](batch.query, *caches, batch.metadata, batch.layer)
    heads, ints = batch.query[:, :1], torch.zeros(1, dtype=torch.int32)
    written = heads, heads, heads, ints, torch.zeros(1, 2), ints, batch.key_cache, batch.value_cache
    with pytest.raises(ValueError, match=r"KVScales\(key=2.0, value=1.0\) are for caches in fp8"):
        KERNELS[rope_and_kv_write](*written, None, KVScales(key=2.0))


def test_blocks_of_a_cache_may_be_apart() -> None:
    shape = Shape(heads=6, kv_heads=2, head_dim=24, block_size=4)
    batch = paged_batch([(1, 70), (33, 5), (3, 9)], shape, CPU)
    wide = torch.full((2, *batch.key_cache.shape[:1], 3, *batch.key_cache.shape[1:]), torch.nan)
    wide[0, :, 1], wide[1, :, 1] = batch.key_cache, batch.value_cache
    apart = replace(batch, key_cache=wide[0, :, 1], value_cache=wide[1, :, 1])
    assert torch.equal(attend(apart), attend(batch))
    key, value = torch.randn((2, 3, 2, 24))
    cells, tables = torch.tensor([5, -1, 8], dtype=torch.int32), (torch.zeros(3, dtype=torch.int32), torch.ones((1, 0)))
    for cached in (batch, apart):
        caches = (cached.key_cache, cached.value_cache)
        KERNELS[rope_and_kv_write](key.clone(), key.clone(), value, *tables, cells, *caches)
    torch.testing.assert_close(apart.key_cache, batch.key_cache, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(apart.value_cache, batch.value_cache, rtol=0, atol=0, equal_nan=True)
    assert wide[:, :, [0, 2]].isnan().all()
    torn = torch.zeros((4, 200))[:, :192].view(4, 4, 2, 24)
    with pytest.raises(ValueError, match=r"with strides \[200, 48, 24, 1\]: give blocks that are whole tokens apart"):
        KERNELS[rope_and_kv_write](key, key, value, *tables, cells, torn, torn)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_bias_is_added_by_distance(bidirectional: bool) -> None:
    batch = paged_batch([(1, 0), (40, 25), (1, 300), (600, 0)], Shape(heads=6, kv_heads=2, head_dim=24), CPU)
    batch = batch.with_relative_bias()
    batch = batch.bidirectional() if bidirectional else batch
    output = attend(batch)
    torch.testing.assert_close(output.double(), batch.expected(), atol=2e-5, rtol=2e-5)
    arguments = batch.key_cache, batch.value_cache, batch.metadata, batch.layer
    reference = select("reference", "cpu")[paged_attention](batch.query, *arguments)
    torch.testing.assert_close(reference.double(), batch.expected(), atol=2e-5, rtol=2e-5)


def test_triton_refuses_a_bias() -> None:
    batch = paged_batch([(1, 30)], Shape(), CPU).with_relative_bias()
    arguments = batch.key_cache, batch.value_cache, batch.metadata, batch.layer
    with pytest.raises(ValueError, match="not there in Triton"):
        attention.paged_attention(batch.query, *arguments)


def test_a_sequence_is_no_longer_than_the_bias_by_distance() -> None:
    batch = paged_batch([(1, 30)], Shape(), CPU).with_relative_bias()
    with pytest.raises(IndexError, match="31"):
        attend(replace(batch, layer=replace(batch.layer, relative_bias=batch.layer.relative_bias[:, :-2].contiguous())))
