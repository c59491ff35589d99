"""Rows of one query token: every context from one token to several splits."""

import pytest
import torch
from pyllm_kernels import Kernels
from pyllm_kernels.ops.paged_attention import paged_attention

from tests.kernels.paged import TOLERANCE, Shape, paged_batch

SPLIT = 128


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(
    "shape",
    [
        Shape(heads=9, kv_heads=3, head_dim=64, block_size=16),
        Shape(heads=3, kv_heads=3, head_dim=80, block_size=32),
        Shape(heads=4, kv_heads=1, head_dim=128, block_size=16),
        Shape(heads=7, kv_heads=1, head_dim=96, block_size=1),
        Shape(heads=20, kv_heads=1, head_dim=16, block_size=64),
    ],
    ids=str,
)
def test_attends_to_every_cached_token(
    kernels: Kernels, shape: Shape, dtype: torch.dtype, device: torch.device
) -> None:
    shape = Shape(shape.heads, shape.kv_heads, shape.head_dim, shape.block_size, dtype)
    check(kernels, [0, 63, 17], shape, device)


@pytest.mark.parametrize(
    "contexts", [[SPLIT - 1], [SPLIT], [3 * SPLIT + 40, 5, SPLIT + 9], [17 * SPLIT], [700] + 8 * [30]], ids=str
)
def test_splits_are_merged(kernels: Kernels, contexts: list[int], device: torch.device) -> None:
    check(kernels, contexts, Shape(heads=2, kv_heads=1, head_dim=16), device)


def test_large_scores_do_not_overflow(kernels: Kernels, device: torch.device) -> None:
    batch = paged_batch([(1, SPLIT + 30), (1, 3)], Shape(heads=3, kv_heads=1), device)
    batch.query.mul_(300)
    output = kernels[paged_attention](batch.query, batch.key_cache, batch.value_cache, batch.metadata, batch.layer)
    torch.testing.assert_close(output.double().cpu(), batch.expected(), atol=1e-3, rtol=1e-3)


def test_a_row_is_bitwise_the_same_alone(kernels: Kernels, device: torch.device) -> None:
    batch = paged_batch(
        [(1, 2 * SPLIT + 1), (1, 20), (1, SPLIT), (1, 0)], Shape(heads=6, kv_heads=2), device
    ).invariant()
    together = kernels[paged_attention](batch.query, batch.key_cache, batch.value_cache, batch.metadata, batch.layer)
    for index in range(4):
        row = batch.row(index)
        alone = kernels[paged_attention](row.query, row.key_cache, row.value_cache, row.metadata, row.layer)
        assert torch.equal(alone[0], together[index])


def check(kernels: Kernels, contexts: list[int], shape: Shape, device: torch.device) -> None:
    batch = paged_batch([(1, context) for context in contexts], shape, device)
    output = kernels[paged_attention](batch.query, batch.key_cache, batch.value_cache, batch.metadata, batch.layer)
    assert output.dtype == shape.dtype
    tolerance = TOLERANCE[shape.dtype]
    torch.testing.assert_close(output.double().cpu(), batch.expected(), atol=tolerance, rtol=tolerance)
