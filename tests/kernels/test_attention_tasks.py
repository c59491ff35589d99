"""The task map: every query and every position once, on a grid that only the shapes of the batch decide."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyllm_kernels import AttentionMetadata, AttentionShape, dtype_name, select
from pyllm_kernels.cards import Card
from pyllm_kernels.decode_shares import count_shares, cut_rows
from pyllm_kernels.ops.paged_attention import paged_attention, plan_attention
from torch import Tensor

from tests.kernels.paged import Shape, paged_batch
from tests.tiers import cases

SHAPE = AttentionShape(heads=6, kv_heads=2, head_dim=16, dtype="float32")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ROWS = st.lists(st.tuples(st.sampled_from([1, 1, 2, 9, 30, 70]), st.integers(0, 3000)), min_size=1, max_size=300)


def metadata_of(rows: list[tuple[int, int]], batch_invariant: bool = False) -> AttentionMetadata:
    """Rows of (query tokens, tokens in the cache before them)."""
    queries = torch.tensor([query for query, _ in rows], dtype=torch.int32)
    lengths = torch.tensor([query + context for query, context in rows], dtype=torch.int32)
    starts = torch.cat((torch.zeros(1, dtype=torch.int32), queries.cumsum(0, dtype=torch.int32)))
    return AttentionMetadata(
        block_tables=torch.zeros((1, 1), dtype=torch.int32, device=DEVICE),
        slots=torch.zeros(len(rows), dtype=torch.int32, device=DEVICE),
        query_starts=starts.to(DEVICE),
        sequence_lengths=lengths.to(DEVICE),
        max_query_length=int(queries.max()),
        max_sequence_length=int(lengths.max()),
        num_tokens=int(starts[-1]),
        batch_invariant=batch_invariant,
    )


def used(tasks: Tensor) -> list[tuple[int, int]]:
    return [(row, number) for row, number in tasks.tolist() if row >= 0]


@settings(max_examples=cases(25), suppress_health_check=[HealthCheck.too_slow])
@given(rows=ROWS, batch_invariant=st.booleans(), window=st.none() | st.integers(1, 700))
def test_tiles_cover_each_query_and_shares_are_as_specified(
    rows: list[tuple[int, int]], batch_invariant: bool, window: int | None
) -> None:
    from pyllm_kernels.cards import card_of
    from pyllm_kernels.gpu.paged_attention.attention_tasks import queries_of_tile
    from pyllm_kernels.gpu.paged_attention.attention_tuning import decode_tile, prefill_tile

    shape = replace(SHAPE, window=window)
    tasks = select("triton", DEVICE)[plan_attention](metadata_of(rows, batch_invariant), shape).tasks
    assert tasks is not None
    card = card_of(DEVICE)
    block_q = queries_of_tile(SHAPE.heads // SHAPE.kv_heads, prefill_tile(card, 16, 4))
    expected_tiles = [
        (row, first)
        for row, (query, _) in enumerate(rows)
        if query > 1 or batch_invariant
        for first in range(0, query, block_q)
    ]
    assert sorted(used(tasks.tiles) if tasks.tiles is not None else []) == expected_tiles

    if tasks.shares is None or tasks.row_begins is None or tasks.share_tiles is None:
        assert batch_invariant or all(query > 1 for query, _ in rows)
        return
    tile = decode_tile(card, 16, 4)
    assert len(tasks.shares) == count_shares(card.num_multiprocessors * tile.programs_per_multiprocessor, 2)
    decoded = [row for row, (query, _) in enumerate(rows) if query == 1]
    if not decoded:
        assert all(last < first for first, last in tasks.shares.tolist())
        return
    lengths = np.array([rows[row][1] + 1 for row in decoded], np.int32)
    splits = cut_rows(lengths, tile.block_n, len(tasks.shares), tile.min_split // tile.block_n, window)

    def passed(row: int) -> int:
        return 0 if window is None else max(rows[row][1] + 1 - window, 0) // tile.block_n * tile.block_n

    size, begins = int(tasks.share_tiles), tasks.row_begins.tolist()
    found = [
        (row, share, passed(row) + max((share * size - begins[row]) * tile.block_n, 0))
        for share, (first, last) in enumerate(tasks.shares.tolist())
        for row in range(first, last + 1)
        if row in decoded
    ]
    assert found == [(decoded[row], share, start) for row, share, start, _ in zip(*map(list, splits), strict=True)]


@pytest.mark.parametrize("longest", [300, 4000])
def test_padding_rows_and_loose_bounds_change_nothing(longest: int, device: torch.device) -> None:
    """As a CUDA graph runs it: a fixed number of rows, and no length that the host knows."""
    triton = select("triton", device)
    batch = paged_batch([(1, 299), (1, 4), (1, 130)], Shape(heads=6, kv_heads=2, head_dim=16), device)
    expected = triton[paged_attention](batch.query, batch.key_cache, batch.value_cache, batch.metadata, batch.layer)
    metadata = batch.metadata
    padded = replace(
        metadata,
        slots=torch.cat((metadata.slots, metadata.slots.new_zeros(2))),
        sequence_lengths=torch.cat((metadata.sequence_lengths, metadata.sequence_lengths.new_zeros(2))),
        query_starts=torch.arange(6, dtype=torch.int32, device=device),
        num_tokens=5,
        max_sequence_length=longest,
    )
    query = torch.cat((batch.query, batch.query[:2]))
    planned = triton[plan_attention](padded, replace(SHAPE, dtype=dtype_name(query.dtype)))
    output = triton[paged_attention](query, batch.key_cache, batch.value_cache, planned, batch.layer)
    torch.testing.assert_close(output[:3], expected, atol=1e-6, rtol=1e-6)
    assert (output[3:] == 0).all()


def test_a_map_is_made_over_for_another_batch(device: torch.device) -> None:
    """As before each replay of a graph, which has the addresses of the map."""
    triton = select("triton", device)
    shape = Shape(heads=6, kv_heads=2, head_dim=16)
    planned = triton[plan_attention](paged_batch([(1, 9)] * 4, shape, device).metadata, SHAPE)
    for rows in ([(1, 1500), (1, 3), (1, 0), (1, 700)], [(1, 70), (1, 90), (1, 2000), (1, 1)], [(1, 0)] * 4):
        batch = paged_batch(rows, shape, device)
        again = triton[plan_attention](batch.metadata, SHAPE, planned)
        assert again.tasks is planned.tasks
        output = triton[paged_attention](batch.query, batch.key_cache, batch.value_cache, again, batch.layer)
        torch.testing.assert_close(output.double().cpu(), batch.expected(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [1, 60, 64, 600])
def test_shares_leave_out_what_lies_before_the_window(device: torch.device, window: int) -> None:
    triton = select("triton", device)
    rows = [(1, 1500), (1, 3), (1, 700), (20, 90), (1, 63)]
    batch = paged_batch(rows, Shape(heads=6, kv_heads=2, head_dim=16), device).windowed(window).with_sinks()
    for planned_for in (window, window + 100):
        metadata = triton[plan_attention](batch.metadata, replace(SHAPE, window=planned_for))
        output = triton[paged_attention](batch.query, batch.key_cache, batch.value_cache, metadata, batch.layer)
        torch.testing.assert_close(output.double().cpu(), batch.expected(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("head_dim", [16, 64, 80, 128, 256])
def test_a_row_in_all_shares_of_a_card_is_merged_in_one_pass(head_dim: int) -> None:
    """Of a model with four KV heads or more on 132 multiprocessors; what is in registers at once is bounded."""
    from pyllm_kernels.gpu.paged_attention.attention_decode import merged_at_once
    from pyllm_kernels.gpu.paged_attention.attention_tasks import make_tasks
    from pyllm_kernels.gpu.paged_attention.attention_tuning import decode_tile, prefill_tile

    card, shape = Card(90, 132), AttentionShape(16, 4, head_dim, "bfloat16")
    tiles = prefill_tile(card, head_dim, 2), decode_tile(card, head_dim, 2)
    tasks = make_tasks(metadata_of([(1, 100_000)]), shape, *tiles, card)
    assert tasks.shares is not None
    splits, columns = merged_at_once(len(tasks.shares), head_dim)
    assert splits >= len(tasks.shares) > 16
    assert 16 <= columns <= max(4096 // splits, 16)


def test_a_row_may_lie_in_more_shares_than_the_merge_takes_at_once(device: torch.device) -> None:
    """On a large card, of one KV head."""
    from pyllm_kernels.gpu.paged_attention.attention_decode import decode_attention
    from pyllm_kernels.gpu.paged_attention.attention_tasks import make_tasks
    from pyllm_kernels.gpu.paged_attention.attention_tuning import DecodeTile, prefill_tile

    card, decode = Card(90, 132), DecodeTile(16, 4, 2, 2, 16)
    batch = paged_batch([(1, 8300), (1, 0), (1, 20)], Shape(heads=1, kv_heads=1, head_dim=16), device)
    shape = AttentionShape(1, 1, 16, "float32")
    tasks = make_tasks(batch.metadata, shape, prefill_tile(card, 16, 4), decode, card)
    assert tasks.shares is not None
    assert (tasks.shares[:, 0] == 0).sum() > 256
    metadata, output = replace(batch.metadata, tasks=tasks), torch.full_like(batch.query, torch.nan)
    decode_attention(batch.query, batch.key_cache, batch.value_cache, metadata, batch.layer, decode, output)
    torch.testing.assert_close(output.double().cpu(), batch.expected(), atol=1e-5, rtol=1e-5)


def test_layers_share_the_map(device: torch.device) -> None:
    triton = select("triton", device)
    batch = paged_batch([(40, 25), (1, 300), (2, 0), (1, 15)], Shape(heads=6, kv_heads=2, head_dim=16), device)
    arguments = batch.query, batch.key_cache, batch.value_cache
    expected = triton[paged_attention](*arguments, batch.metadata, batch.layer)
    planned = triton[plan_attention](batch.metadata, SHAPE)
    for _ in range(2):
        assert torch.equal(triton[paged_attention](*arguments, planned, batch.layer), expected)


def test_the_reference_needs_no_map(device: torch.device) -> None:
    metadata = metadata_of([(1, 3)])
    assert select("reference", device)[plan_attention](metadata, SHAPE).tasks is None
