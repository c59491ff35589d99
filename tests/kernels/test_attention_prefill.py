"""Rows of several query tokens: whole prompts, chunks after a context, and batches of both."""

from dataclasses import replace

import pytest
import torch
from pyllm_kernels import Kernels
from pyllm_kernels.ops.paged_attention import paged_attention

from tests.kernels.paged import TOLERANCE, Shape, paged_batch


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(
    "shape",
    [
        Shape(heads=9, kv_heads=3, head_dim=64, block_size=16),
        Shape(heads=3, kv_heads=3, head_dim=80, block_size=32),
        Shape(heads=4, kv_heads=1, head_dim=128, block_size=16),
        Shape(heads=7, kv_heads=1, head_dim=96, block_size=1),
        Shape(heads=40, kv_heads=1, head_dim=16, block_size=64),
    ],
    ids=str,
)
def test_attends_causally(kernels: Kernels, shape: Shape, dtype: torch.dtype, device: torch.device) -> None:
    shape = Shape(shape.heads, shape.kv_heads, shape.head_dim, shape.block_size, dtype)
    check(kernels, [(2, 0), (37, 0), (5, 70)], shape, device)


@pytest.mark.parametrize(
    "rows",
    [
        [(150, 0)],
        [(64, 64), (64, 0)],
        [(33, 100)],
        [(2, 300)],
        [(2, 0)] * 9,
    ],
    ids=str,
)
def test_chunks_of_every_length(kernels: Kernels, rows: list[tuple[int, int]], device: torch.device) -> None:
    check(kernels, rows, Shape(heads=6, kv_heads=2, head_dim=32), device)


def test_the_order_of_kv_tiles_does_not_depend_on_the_chunk(kernels: Kernels, device: torch.device) -> None:
    """The same prompt in one chunk and in two: the tokens of the second chunk attend to the same cache."""
    batch = paged_batch([(90, 0)], Shape(heads=3, kv_heads=1), device)
    whole = kernels[paged_attention](batch.query, batch.key_cache, batch.value_cache, batch.metadata, batch.layer)
    chunk = batch.tail(50)
    second = kernels[paged_attention](chunk.query, chunk.key_cache, chunk.value_cache, chunk.metadata, chunk.layer)
    if kernels.backend == "triton":
        assert torch.equal(second, whole[40:])
    else:
        torch.testing.assert_close(second, whole[40:], atol=1e-6, rtol=1e-6)


def test_invariant_tokens_are_the_same_one_by_one_and_at_once(kernels: Kernels, device: torch.device) -> None:
    """A token that was decoded is computed once more, within a chunk, when its sequence was preempted."""
    batch = paged_batch([(70, 0)], Shape(heads=4, kv_heads=2, head_dim=16), device).invariant()
    # Interpreted, a dot is numpy's, where OpenBLAS may sum a row by its place in the tile: the first has the same.
    lengths = (1, 33, 64, 65, 70) if device.type == "cuda" else (1, 17, 33, 65)
    arguments = batch.key_cache, batch.value_cache
    together = kernels[paged_attention](batch.query, *arguments, batch.metadata, batch.layer)
    for length in lengths:
        row = batch.one_row_of(batch.query[length - 1 : length])
        metadata = replace(
            row.metadata,
            sequence_lengths=torch.full_like(row.metadata.sequence_lengths, length),
            max_sequence_length=length,
        )
        alone = kernels[paged_attention](row.query, *arguments, metadata, batch.layer)
        if kernels.backend == "triton":
            assert torch.equal(alone[0], together[length - 1])
        else:
            torch.testing.assert_close(alone[0], together[length - 1], atol=1e-6, rtol=1e-6)


def check(kernels: Kernels, rows: list[tuple[int, int]], shape: Shape, device: torch.device) -> None:
    batch = paged_batch(rows, shape, device)
    output = kernels[paged_attention](batch.query, batch.key_cache, batch.value_cache, batch.metadata, batch.layer)
    assert output.dtype == shape.dtype
    tolerance = TOLERANCE[shape.dtype]
    torch.testing.assert_close(output.double().cpu(), batch.expected(), atol=tolerance, rtol=tolerance)
