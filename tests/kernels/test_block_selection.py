"""The blocks that a sparse row keeps, against a definition in float64, one head at a time."""

from dataclasses import replace

import numpy as np
import pyllm_kernels
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyllm_kernels import (
    SUMMARY_PARTS,
    AttentionMetadata,
    BlockBudget,
    Graph,
    Kernels,
    KeySummaries,
    SparseRows,
    select,
)
from pyllm_kernels.ops.block_selection import score_blocks, select_blocks
from pyllm_kernels.ops.paged_attention import paged_attention
from pyllm_kernels.torch_bridge import on_host
from torch import Tensor

from tests.kernels.paged import PagedBatch, Shape, paged_batch
from tests.tiers import cases

KINDS = ["mean", "bounds"]
BUDGET = BlockBudget(num_sink_blocks=1, top_k=3, num_recent_blocks=2)


def mark(batch: PagedBatch, *sparse: int) -> Tensor:
    """Which rows are sparse."""
    marks = torch.zeros(len(batch.metadata.slots), dtype=torch.int32, device=batch.query.device)
    marks[list(sparse)] = 1
    return marks


def chosen(
    kernels: Kernels, batch: PagedBatch, marks: Tensor, summaries: KeySummaries, budget: BlockBudget = BUDGET
) -> AttentionMetadata:
    rows = SparseRows(batch.metadata, marks, budget)
    shares = kernels[score_blocks](batch.query, batch.key_cache, rows, batch.layer.scale, summaries)
    return kernels[select_blocks](shares, batch.key_cache, rows)


def kept_blocks(metadata: AttentionMetadata, row: int, block_size: int) -> list[int]:
    used = -(-int(metadata.sequence_lengths[row]) // block_size)
    table: list[int] = metadata.block_tables[int(metadata.slots[row])].tolist()
    return table[:used]


def expected_blocks(batch: PagedBatch, row: int, kind: str, budget: BlockBudget) -> list[int]:
    """By the definition, of a row of one token."""
    table = kept_blocks(batch.metadata, row, batch.key_cache.shape[1])
    end = len(table) - budget.num_recent_blocks
    candidates = table[budget.num_sink_blocks : end]
    query = batch.query[batch.tokens_of(row)][0].double().cpu().numpy()
    keys = batch.key_cache[candidates].double().cpu().numpy()
    shares = np.zeros(len(candidates))
    for head, of_head in enumerate(query):
        own = keys[:, :, head * keys.shape[2] // len(query)]  # [blocks, block_size, head_dim]
        if kind == "mean":
            scores = own.mean(axis=1) @ of_head
        else:
            scores = np.maximum(own.max(axis=1) * of_head, own.min(axis=1) * of_head).sum(axis=1)
        weights = np.exp(scores * batch.layer.scale - (scores * batch.layer.scale).max())
        shares += weights / weights.sum()
    best = sorted(np.argsort(-shares, kind="stable")[: budget.top_k])
    return table[: budget.num_sink_blocks] + [candidates[index] for index in best] + table[end:]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("head_dim", [24, 64])
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (9, 3), (10, 2)])
def test_blocks_with_the_greatest_shares_are_kept(
    kernels: Kernels, device: torch.device, kind: str, head_dim: int, heads: int, kv_heads: int
) -> None:
    shape = Shape(heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    batch = paged_batch([(1, 270), (30, 200), (1, 40), (1, 1310), (1, 303)], shape, device)
    metadata = chosen(kernels, batch, mark(batch, 0, 1, 2, 3), empty(kind, batch.key_cache))
    for row in (0, 3):
        assert kept_blocks(metadata, row, 16) == expected_blocks(batch, row, kind, BUDGET)
    for row in (1, 2, 4):  # several tokens, few blocks, not sparse
        assert kept_blocks(metadata, row, 16) == kept_blocks(batch.metadata, row, 16)
    assert metadata.sequence_lengths.tolist() == [5 * 16 + 15, 230, 41, 5 * 16 + 15, 304]


@pytest.mark.parametrize("kind", KINDS)
def test_shares_of_some_heads_add_up_to_those_of_all(kernels: Kernels, device: torch.device, kind: str) -> None:
    """As ranks have them: each its KV heads, and the query heads that read those."""
    batch = paged_batch([(1, 400), (1, 900), (7, 30)], Shape(heads=6, kv_heads=3), device)
    rows = SparseRows(batch.metadata, mark(batch, 0, 1), BUDGET)

    def scores(query: Tensor, keys: Tensor) -> list[Tensor]:
        shares = kernels[score_blocks](query, keys, rows, batch.layer.scale, empty(kind, keys))
        return [shares[0, : 26 - 3], shares[1, : 57 - 3]]

    whole = scores(batch.query, batch.key_cache)
    parts = [
        scores(
            batch.query[:, 2 * head : 2 * head + 2].contiguous(), batch.key_cache[:, :, head : head + 1].contiguous()
        )
        for head in range(3)
    ]
    for row, of_all in enumerate(whole):
        torch.testing.assert_close(sum(part[row] for part in parts), of_all)
        torch.testing.assert_close(of_all.sum(), torch.tensor(6.0, device=device))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_that_keeps_all_blocks_has_the_bits_of_a_dense_one(
    kernels: Kernels, device: torch.device, kind: str, dtype: torch.dtype
) -> None:
    if kernels.backend == "triton" and dtype is torch.bfloat16 and device.type != "cuda":
        dtype = torch.float16  # The interpreter multiplies no bfloat16.
    batch = paged_batch([(1, 1100), (30, 200), (1, 600)], Shape(heads=4, dtype=dtype), device).invariant()
    budget = BlockBudget(num_sink_blocks=2, top_k=65, num_recent_blocks=2)
    metadata = chosen(kernels, batch, mark(batch, 0, 1, 2), empty(kind, batch.key_cache), budget)
    cache = batch.key_cache, batch.value_cache
    assert torch.equal(
        kernels[paged_attention](batch.query, *cache, metadata, batch.layer),
        kernels[paged_attention](batch.query, *cache, batch.metadata, batch.layer),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_attention_is_that_of_the_positions_left(kernels: Kernels, device: torch.device, kind: str) -> None:
    batch = paged_batch([(1, 203)], Shape(heads=6, kv_heads=2), device)
    budget = BlockBudget(num_sink_blocks=1, top_k=9, num_recent_blocks=2)  # All of 13 blocks but one.
    metadata = chosen(kernels, batch, mark(batch, 0), empty(kind, batch.key_cache), budget)
    output = kernels[paged_attention](batch.query, batch.key_cache, batch.value_cache, metadata, batch.layer)
    (left_out,) = set(kept_blocks(batch.metadata, 0, 16)) - set(kept_blocks(metadata, 0, 16))
    table = [block for block in kept_blocks(batch.metadata, 0, 16) if block != left_out]
    keys, values = (cache[table].flatten(0, 1)[: 204 - 16].double() for cache in (batch.key_cache, batch.value_cache))
    query = batch.query[0].double().view(2, 3, 64)
    weights = torch.einsum("kgd,tkd->kgt", query, keys).mul(batch.layer.scale).softmax(dim=-1)
    expected = torch.einsum("kgt,tkd->kgd", weights, values).reshape(1, 6, 64)
    torch.testing.assert_close(output.double(), expected, atol=1e-5, rtol=1e-5)


@settings(max_examples=cases(20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    contexts=st.lists(st.integers(0, 900), min_size=1, max_size=5),
    kind=st.sampled_from(KINDS),
    top_k=st.integers(0, 20),
    num_threads=st.sampled_from([1, 2, 3]),
    seed=st.integers(0, 99),
)
def test_a_row_chooses_the_same_blocks_alone(
    contexts: list[int], kind: str, top_k: int, num_threads: int, seed: int
) -> None:
    kernels, budget = select("cpu", "cpu"), BlockBudget(1, top_k, 1)
    batch = paged_batch([(1, context) for context in contexts], Shape(), torch.device("cpu"), seed)
    pyllm_kernels.set_num_threads(num_threads)
    try:
        together = chosen(kernels, batch, mark(batch, *range(len(contexts))), empty(kind, batch.key_cache), budget)
    finally:
        pyllm_kernels.set_num_threads(1)
    for index in range(len(contexts)):
        row = batch.row(index)
        alone = chosen(kernels, row, mark(row, 0), empty(kind, batch.key_cache), budget)
        assert kept_blocks(together, index, 16) == kept_blocks(alone, 0, 16)


def empty(kind: str, key_cache: torch.Tensor) -> KeySummaries:
    """Of a cache [num_blocks, block_size, kv_heads, head_dim], with nothing known."""
    num_blocks, _, kv_heads, head_dim = key_cache.shape
    shape = num_blocks, kv_heads, SUMMARY_PARTS[kind], head_dim
    vectors = torch.zeros(shape, dtype=key_cache.dtype, device=key_cache.device)
    return KeySummaries(kind, vectors, torch.zeros(num_blocks, dtype=torch.uint8, device=key_cache.device))


@pytest.mark.parametrize("kind", KINDS)
def test_a_summary_lasts_until_its_block_is_written_again(kernels: Kernels, device: torch.device, kind: str) -> None:
    batch = paged_batch([(1, 400)], Shape(), device)
    summaries, marks = empty(kind, batch.key_cache), mark(batch, 0)
    first = kept_blocks(chosen(kernels, batch, marks, summaries), 0, 16)
    table = kept_blocks(batch.metadata, 0, 16)
    candidates = table[BUDGET.num_sink_blocks : -BUDGET.num_recent_blocks]
    assert sorted(summaries.known.nonzero().flatten().tolist()) == sorted(candidates)
    # What was chosen last now has no share, and what was not all of it.
    unseen = next(block for block in candidates if block not in first)
    query = batch.query[0].view(2, 2, 64).mean(dim=1)
    batch.key_cache[unseen] = query * 100
    assert kept_blocks(chosen(kernels, batch, marks, summaries), 0, 16) == first
    summaries.known[unseen] = 0
    assert unseen in kept_blocks(chosen(kernels, batch, marks, summaries), 0, 16)


@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_holds_the_choice(kind: str) -> None:
    kernels, graph = select("cpu", "cpu"), Graph()

    @on_host  # A graph holds arrays.
    def check(batch: PagedBatch, row: PagedBatch, marks: Tensor, summaries: list[KeySummaries]) -> None:
        cache = batch.key_cache, batch.value_cache
        expected = chosen(kernels, batch, marks, summaries[0])
        with graph.capture():
            metadata = chosen(kernels, batch, marks, summaries[1])
            output = kernels[paged_attention](batch.query, *cache, metadata, batch.layer)
        graph.replay(2, 2)
        assert np.array_equal(output, kernels[paged_attention](batch.query, *cache, expected, batch.layer))
        graph.replay(1, 1)
        alone = chosen(kernels, row, marks[:1], summaries[2])
        assert np.array_equal(output[:1], kernels[paged_attention](row.query, *cache, alone, batch.layer))

    batch = paged_batch([(1, 700), (1, 300)], Shape(), torch.device("cpu"))
    check(batch, batch.row(0), mark(batch, 0, 1), [empty(kind, batch.key_cache) for _ in range(3)])


def test_a_budget_has_a_last_block_and_a_mark_is_zero_or_one() -> None:
    kernels = select("cpu", "cpu")
    batch = paged_batch([(1, 200)], Shape(), torch.device("cpu"))
    with pytest.raises(ValueError, match="no recent block"):
        chosen(kernels, batch, mark(batch, 0), empty("mean", batch.key_cache), replace(BUDGET, num_recent_blocks=0))
    with pytest.raises(IndexError, match="mark of sparse row 0 is 2: it must be from 0 to 1"):
        chosen(kernels, batch, 2 * mark(batch, 0), empty("mean", batch.key_cache))
