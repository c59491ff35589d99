"""Paged attention as the engine calls it: rows of any kind together, whatever blocks they are given."""

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyllm_kernels import Kernels, select
from pyllm_kernels.ops.paged_attention import paged_attention

from tests.kernels.paged import Shape, paged_batch

ROWS = st.lists(st.tuples(st.integers(1, 20), st.integers(0, 40)), min_size=1, max_size=4)


def test_decodes_beside_prefills(kernels: Kernels, device: torch.device) -> None:
    rows = [(1, 0), (40, 25), (1, 300), (2, 0), (1, 15), (16, 0)]
    batch = paged_batch(rows, Shape(heads=9, kv_heads=3), device)
    output = kernels[paged_attention](batch.query, batch.key_cache, batch.value_cache, batch.metadata, batch.layer)
    torch.testing.assert_close(output.double().cpu(), batch.expected(), atol=1e-5, rtol=1e-5)


def test_many_heads_share_a_kv_head(kernels: Kernels, device: torch.device) -> None:
    """More than fit into a tile."""
    batch = paged_batch([(1, 0), (20, 25), (1, 300), (2, 0)], Shape(heads=142, kv_heads=2, head_dim=32), device)
    for asked in (batch, batch.invariant(), batch.windowed(40).with_sinks().with_slopes()):
        arguments = asked.key_cache, asked.value_cache, asked.metadata, asked.layer
        output = kernels[paged_attention](asked.query, *arguments)
        torch.testing.assert_close(output.double().cpu(), asked.expected(), atol=2e-5, rtol=2e-5)


def test_blocks_may_be_apart(kernels: Kernels, device: torch.device) -> None:
    """Layers of narrow heads share a plane of the cache with others."""
    batch = paged_batch([(1, 300), (40, 25), (1, 5)], Shape(block_size=8), device)
    caches = (
        torch.full((len(c), 3, *c.shape[1:]), torch.nan, device=device) for c in (batch.key_cache, batch.value_cache)
    )
    key_cache, value_cache = (cache[:, 1] for cache in caches)
    key_cache.copy_(batch.key_cache)
    value_cache.copy_(batch.value_cache)
    for asked in (batch, batch.invariant()):
        output = kernels[paged_attention](asked.query, key_cache, value_cache, asked.metadata, asked.layer)
        torch.testing.assert_close(output.double().cpu(), batch.expected(), atol=1e-5, rtol=1e-5)


def test_values_may_be_narrower_than_keys(kernels: Kernels, device: torch.device) -> None:
    """Values narrower than their place: numbers behind them in the cache are not read."""
    batch = paged_batch([(1, 300), (40, 25), (1, 5)], Shape(head_dim=48), device)
    expected = batch.expected()[..., :32]
    batch.value_cache[..., 32:] = torch.nan
    layer = replace(batch.layer, value_size=32)
    for asked in (batch, batch.invariant()):
        output = kernels[paged_attention](asked.query, asked.key_cache, asked.value_cache, asked.metadata, layer)
        torch.testing.assert_close(output.double().cpu(), expected, atol=1e-5, rtol=1e-5)


def test_a_row_is_bitwise_the_same_alone(kernels: Kernels, device: torch.device) -> None:
    batch = paged_batch([(1, 270), (30, 10), (1, 3), (7, 0)], Shape(heads=4, kv_heads=2), device).invariant()
    together = kernels[paged_attention](batch.query, batch.key_cache, batch.value_cache, batch.metadata, batch.layer)
    for index in range(4):
        row = batch.row(index)
        alone = kernels[paged_attention](row.query, row.key_cache, row.value_cache, row.metadata, row.layer)
        assert torch.equal(alone, together[batch.tokens_of(index)])


@pytest.mark.parametrize(
    ("window", "soft_cap"), [(None, None), (None, 2.0), (1, None), (7, 2.0), (64, None), (100, 2.0), (1000, None)]
)
def test_windows_and_soft_caps(
    kernels: Kernels, device: torch.device, window: int | None, soft_cap: float | None
) -> None:
    rows = [(1, 0), (40, 25), (1, 300), (2, 70), (1, 600), (130, 20)]
    batch = paged_batch(rows, Shape(heads=3, kv_heads=1, head_dim=24), device).windowed(window, soft_cap)
    expected = batch.expected()
    for asked in (batch, batch.invariant()):
        arguments = asked.key_cache, asked.value_cache, asked.metadata, asked.layer
        output = kernels[paged_attention](asked.query, *arguments)
        torch.testing.assert_close(output.double().cpu(), expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("window", [1, 7, 100])
def test_a_row_with_a_window_is_bitwise_the_same_alone(kernels: Kernels, device: torch.device, window: int) -> None:
    batch = paged_batch([(1, 270), (30, 100), (1, 3), (7, 0)], Shape(heads=4, kv_heads=2), device)
    batch = batch.windowed(window, 3.0).invariant()
    together = kernels[paged_attention](batch.query, batch.key_cache, batch.value_cache, batch.metadata, batch.layer)
    for index in range(4):
        row = batch.row(index)
        alone = kernels[paged_attention](row.query, row.key_cache, row.value_cache, row.metadata, row.layer)
        assert torch.equal(alone, together[batch.tokens_of(index)])


@pytest.mark.parametrize(("window", "soft_cap"), [(None, None), (None, 2.0), (1, None), (7, 2.0), (100, None)])
def test_sinks_take_a_share_once(
    kernels: Kernels, device: torch.device, window: int | None, soft_cap: float | None
) -> None:
    rows = [(1, 0), (40, 25), (1, 300), (2, 70), (1, 1100), (130, 20)]  # Some are of several splits.
    batch = paged_batch(rows, Shape(heads=6, kv_heads=2, head_dim=32), device).windowed(window, soft_cap).with_sinks()
    expected = batch.expected()
    for asked in (batch, batch.invariant()):
        arguments = asked.key_cache, asked.value_cache, asked.metadata, asked.layer
        output = kernels[paged_attention](asked.query, *arguments)
        torch.testing.assert_close(output.double().cpu(), expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("window", [None, 7])
def test_a_row_with_sinks_is_bitwise_the_same_alone(kernels: Kernels, device: torch.device, window: int | None) -> None:
    batch = paged_batch([(1, 270), (30, 100), (1, 3), (7, 0)], Shape(heads=4, kv_heads=2), device)
    batch = batch.windowed(window).with_sinks().invariant()
    together = kernels[paged_attention](batch.query, batch.key_cache, batch.value_cache, batch.metadata, batch.layer)
    for index in range(4):
        row = batch.row(index)
        alone = kernels[paged_attention](row.query, row.key_cache, row.value_cache, row.metadata, row.layer)
        assert torch.equal(alone, together[batch.tokens_of(index)])


@pytest.mark.parametrize(
    ("window", "soft_cap", "heads"), [(None, None, 6), (None, 2.0, 2), (7, 2.0, 6), (100, None, 3)]
)
def test_scores_fall_with_distance(
    kernels: Kernels, device: torch.device, window: int | None, soft_cap: float | None, heads: int
) -> None:
    rows = [(1, 0), (40, 25), (1, 300), (2, 70), (1, 1100), (130, 20)]
    kv_heads = 2 if heads % 2 == 0 else 3
    batch = paged_batch(rows, Shape(heads, kv_heads, head_dim=32), device).windowed(window, soft_cap).with_slopes()
    batch = batch if soft_cap is None else batch.with_sinks()
    expected = batch.expected()
    for asked in (batch, batch.invariant()):
        arguments = asked.key_cache, asked.value_cache, asked.metadata, asked.layer
        output = kernels[paged_attention](asked.query, *arguments)
        torch.testing.assert_close(output.double().cpu(), expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize(("window", "soft_cap"), [(None, None), (1, None), (7, 2.0), (100, None)])
def test_tokens_see_later_ones(
    kernels: Kernels, device: torch.device, window: int | None, soft_cap: float | None
) -> None:
    rows = [(1, 0), (2, 0), (40, 0), (130, 20), (600, 0), (64, 0)]
    batch = paged_batch(rows, Shape(heads=6, kv_heads=2, head_dim=32), device).windowed(window, soft_cap)
    batch = batch.bidirectional() if soft_cap is None else batch.bidirectional().with_sinks().with_slopes()
    expected = batch.expected()
    for asked in (batch, batch.invariant()):
        arguments = asked.key_cache, asked.value_cache, asked.metadata, asked.layer
        output = kernels[paged_attention](asked.query, *arguments)
        torch.testing.assert_close(output.double().cpu(), expected, atol=2e-5, rtol=2e-5)
    batch = batch.invariant()
    together = kernels[paged_attention](batch.query, batch.key_cache, batch.value_cache, batch.metadata, batch.layer)
    for index in range(len(rows)):
        row = batch.row(index)
        alone = kernels[paged_attention](row.query, row.key_cache, row.value_cache, row.metadata, row.layer)
        assert torch.equal(alone, together[batch.tokens_of(index)])


def test_a_row_with_slopes_is_bitwise_the_same_alone(kernels: Kernels, device: torch.device) -> None:
    batch = paged_batch([(1, 270), (30, 100), (1, 3), (7, 0)], Shape(heads=4, kv_heads=2), device)
    batch = batch.with_slopes().invariant()
    together = kernels[paged_attention](batch.query, batch.key_cache, batch.value_cache, batch.metadata, batch.layer)
    for index in range(4):
        row = batch.row(index)
        alone = kernels[paged_attention](row.query, row.key_cache, row.value_cache, row.metadata, row.layer)
        assert torch.equal(alone, together[batch.tokens_of(index)])


def test_the_query_may_be_a_view_of_a_wider_projection(kernels: Kernels, device: torch.device) -> None:
    batch = paged_batch([(3, 5), (1, 9)], Shape(), device)
    tokens, heads, head_dim = batch.query.shape
    projected = torch.randn(tokens, heads + 3, head_dim, device=device)
    projected[:, :heads] = batch.query
    arguments = batch.key_cache, batch.value_cache, batch.metadata, batch.layer
    output = kernels[paged_attention](projected[:, :heads], *arguments)
    assert output.is_contiguous()
    assert torch.equal(output, kernels[paged_attention](batch.query, *arguments))


def test_keys_and_values_may_be_fp8(kernels_with_fp8: Kernels, device: torch.device) -> None:
    batch = paged_batch([(1, 300), (20, 30), (1, 5)], Shape(), device)
    batch = replace(
        batch,
        key_cache=batch.key_cache.to(torch.float8_e4m3fn),
        value_cache=batch.value_cache.to(torch.float8_e4m3fn),
    )
    output = kernels_with_fp8[paged_attention](
        batch.query, batch.key_cache, batch.value_cache, batch.metadata, batch.layer
    )
    torch.testing.assert_close(output.double().cpu(), batch.expected(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("size", [1.0, 3e5, 1e-6])
def test_bfloat16_queries_of_any_size_meet_fp8(kernels_with_fp8: Kernels, device: torch.device, size: float) -> None:
    """Products are in float16, whose range is smaller."""
    batch = paged_batch([(1, 300), (20, 30), (1, 5)], Shape(heads=6, head_dim=48, dtype=torch.bfloat16), device)
    batch = replace(
        batch,
        query=batch.query * size,
        key_cache=batch.key_cache.to(torch.float8_e4m3fn),
        value_cache=batch.value_cache.to(torch.float8_e4m3fn),
        layer=replace(batch.layer, scale=batch.layer.scale / size),
    )
    for asked in (batch, batch.windowed(30, 2.0)):
        output = kernels_with_fp8[paged_attention](
            asked.query, asked.key_cache, asked.value_cache, asked.metadata, asked.layer
        )
        torch.testing.assert_close(output.double().cpu(), asked.expected(), atol=2e-2, rtol=2e-2)


def test_the_reference_serves_bfloat16(device: torch.device) -> None:
    batch = paged_batch([(1, 40), (9, 3)], Shape(dtype=torch.bfloat16), device)
    reference = select("reference", device)
    output = reference[paged_attention](batch.query, batch.key_cache, batch.value_cache, batch.metadata, batch.layer)
    torch.testing.assert_close(output.double().cpu(), batch.expected(), atol=2e-2, rtol=2e-2)


def test_the_interpreter_refuses_bfloat16() -> None:
    device = torch.device("cpu")
    batch = paged_batch([(1, 4)], Shape(dtype=torch.bfloat16), device)
    from pyllm_kernels.gpu.paged_attention.attention import paged_attention

    with pytest.raises(ValueError, match="bfloat16"):
        paged_attention(batch.query, batch.key_cache, batch.value_cache, batch.metadata, batch.layer)


@pytest.mark.parametrize(
    "backend", ["reference", "triton"] if torch.cuda.is_available() else ["reference", "cpu", "triton"]
)
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(rows=ROWS, seed=st.integers(0, 1000), block_size=st.sampled_from([1, 4, 16]))
def test_any_batch_over_any_blocks(backend: str, rows: list[tuple[int, int]], seed: int, block_size: int) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch = paged_batch(rows, Shape(heads=3, kv_heads=1, head_dim=16, block_size=block_size), device, seed)
    output = select(backend, device)[paged_attention](
        batch.query, batch.key_cache, batch.value_cache, batch.metadata, batch.layer
    )
    torch.testing.assert_close(output.double().cpu(), batch.expected(), atol=1e-5, rtol=1e-5)
