"""Attention over latents, whose values are in their keys: one vector of a token for all query heads."""

from dataclasses import replace

import pytest
import torch
from pyllm_kernels import Kernels
from pyllm_kernels.ops.paged_attention import paged_attention
from pyllm_kernels.ops.rope_and_kv_write import rope_and_kv_write
from torch import Tensor

from tests.kernels.paged import TOLERANCE, PagedBatch, Shape, paged_batch

ROWS = [(1, 0), (40, 25), (1, 300), (2, 70), (1, 600), (7, 0)]


def latent_batch(rows: list[tuple[int, int]], heads: int, sizes: tuple[int, int], **kinds: object) -> PagedBatch:
    """A batch whose `sizes` are those of the part that keys have alone, and of the values."""
    start, size = sizes
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch = paged_batch(rows, replace(Shape(heads, 1, start + size), **kinds), device)
    return replace(batch, value_cache=batch.key_cache, layer=replace(batch.layer, value_start=start))


def attend(kernels: Kernels, batch: PagedBatch) -> Tensor:
    """The attended values alone."""
    arguments = batch.key_cache, batch.value_cache, batch.metadata, batch.layer
    return kernels[paged_attention](batch.query, *arguments)[..., batch.layer.value_start :]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("heads", "sizes", "block_size"), [(20, (6, 27), 16), (71, (8, 32), 5), (2, (16, 64), 32), (1, (33, 16), 1)]
)
def test_decodes_beside_prefills(
    kernels: Kernels, heads: int, sizes: tuple[int, int], block_size: int, dtype: torch.dtype
) -> None:
    """71 heads are in several tiles of unequal parts."""
    batch = latent_batch(ROWS, heads, sizes, block_size=block_size, dtype=dtype)
    expected = batch.expected()[..., sizes[0] :]
    for asked in (batch, batch.invariant()):
        found = attend(kernels, asked)
        torch.testing.assert_close(found.double().cpu(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_all_that_other_layers_have(kernels: Kernels) -> None:
    batch = latent_batch(ROWS, 40, (8, 48)).windowed(50, 2.0).with_sinks().with_slopes()
    batch = replace(batch, value_cache=batch.key_cache)
    expected = batch.expected()[..., 8:]
    for asked in (batch, batch.invariant()):
        torch.testing.assert_close(attend(kernels, asked).double().cpu(), expected, atol=2e-5, rtol=2e-5)


def test_a_row_is_bitwise_the_same_alone_and_in_chunks(kernels: Kernels) -> None:
    batch = latent_batch([(1, 270), (30, 10), (1, 3), (7, 0)], 71, (8, 32)).invariant()
    together = attend(kernels, batch)
    for index in range(4):
        row = batch.row(index)
        alone = attend(kernels, row)
        assert torch.equal(alone, together[batch.tokens_of(index)])
        assert torch.equal(attend(kernels, row.tail(1)), alone[-1:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_latents_may_be_fp8(kernels_with_fp8: Kernels, dtype: torch.dtype) -> None:
    batch = latent_batch([(1, 300), (20, 30), (1, 5)], 20, (16, 48), dtype=dtype)
    # Of a query of bfloat16, the numbers that values lack are far the largest, and meet equal ones.
    batch.query[..., :16] *= 300
    cache = batch.key_cache.to(torch.float8_e4m3fn)
    layer = replace(batch.layer, scale=batch.layer.scale / 300)
    batch = replace(batch, key_cache=cache, value_cache=cache, layer=layer)
    found = attend(kernels_with_fp8, batch).double().cpu()
    tolerance = 2 * TOLERANCE[dtype]
    torch.testing.assert_close(found, batch.expected()[..., 16:], atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("heads", [128, 3])
def test_a_latent_is_rotated_and_written_once(kernels: Kernels, heads: int) -> None:
    """Many heads of many numbers are rotated by several programs."""
    rotary, size, tokens = 32, 160, 5
    query, key = torch.randn(tokens, heads, rotary + size), torch.randn(tokens, 1, rotary + size)
    positions = torch.randint(64, (tokens,), dtype=torch.int32)
    angles = torch.rand(64, rotary // 2)
    table, cells = torch.cat((angles.cos(), angles.sin()), 1), torch.tensor([7, -1, 30, 2, 79], dtype=torch.int32)
    cache = torch.zeros(5, 16, 1, rotary + size)
    before, key_before = query.clone(), key.clone()
    kernels[rope_and_kv_write](query, key, key, positions, table, cells, cache, cache)
    for found, given in ((query, before), (key, key_before)):
        turned = torch.view_as_complex(torch.stack(given[..., :rotary].chunk(2, -1), -1))
        turned = turned * torch.polar(torch.ones(()), angles[positions.long()])[:, None]
        torch.testing.assert_close(found[..., :rotary], torch.cat((turned.real, turned.imag), -1), atol=1e-5, rtol=1e-5)
        assert torch.equal(found[..., rotary:], given[..., rotary:])
    written = [0, 2, 3, 4]
    assert torch.equal(cache.flatten(0, 1)[cells[written].long()], key[written])
    assert int(cache.flatten(1).any(1).sum()) == 3
