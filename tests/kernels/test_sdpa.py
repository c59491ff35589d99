"""Attention by torch's `scaled_dot_product_attention`, for any kind of layer."""

from dataclasses import replace

import pytest
import torch
from pyllm_kernels.gpu import sdpa

from tests.kernels.paged import PagedBatch, Shape, paged_batch

ROWS = [(1, 0), (40, 25), (1, 300), (2, 70), (16, 0)]


def check(batch: PagedBatch) -> None:
    output = sdpa.paged_attention(batch.query, batch.key_cache, batch.value_cache, batch.metadata, batch.layer)
    torch.testing.assert_close(output.double().cpu(), batch.expected(), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize(("window", "soft_cap"), [(None, None), (None, 2.0), (1, None), (7, 2.0), (64, None)])
def test_windows_soft_caps_and_sinks(
    device: torch.device, window: int | None, soft_cap: float | None, sinks: bool
) -> None:
    batch = paged_batch(ROWS, Shape(heads=6, kv_heads=2, head_dim=24), device).windowed(window, soft_cap)
    check(batch.with_sinks() if sinks else batch)


def test_slopes(device: torch.device) -> None:
    check(paged_batch(ROWS, Shape(heads=6, kv_heads=2, head_dim=24), device).windowed(64).with_slopes())


@pytest.mark.parametrize("window", [None, 7, 64])
def test_tokens_see_later_ones(device: torch.device, window: int | None) -> None:
    batch = paged_batch(ROWS, Shape(heads=6, kv_heads=2, head_dim=24), device).windowed(window).bidirectional()
    check(batch)
    check(batch.with_slopes())
    check(batch.with_relative_bias())


def test_caches_of_fp8(device: torch.device) -> None:
    batch = paged_batch(ROWS, Shape(), device)
    caches = (cache.to(torch.float8_e4m3fn) for cache in (batch.key_cache, batch.value_cache))
    check(replace(batch, **dict(zip(("key_cache", "value_cache"), caches, strict=True))))
