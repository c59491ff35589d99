"""Sparse attention: the choice of the blocks that a row reads, by summaries of their keys.

Knows neither why a row is sparse, nor when a summary is out of date.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from pyllm_kernels import _cpu, graph
from pyllm_kernels.metadata import AttentionMetadata
from pyllm_kernels.op import op
from pyllm_kernels.tensors import Array, Floats, Tensor, softmax, widened

# The number of vectors [head_dim] for each KV head of a block. "mean": the mean of its keys. "bounds": the maximum and
# the minimum of each dimension (Quest, arXiv 2406.10774).
SUMMARY_PARTS = {"mean": 1, "bounds": 2}

_Lengths = TypeVar("_Lengths", int, npt.NDArray[np.int32])


@dataclass(frozen=True, slots=True)
class BlockBudget:
    """The number of blocks that a sparse row keeps. A row with no more than `num_blocks` keeps all of them.

    - `num_sink_blocks`: the first blocks (attention sinks, arXiv 2309.17453).
    - `top_k`: the best blocks between the first and the last ones.
    - `num_recent_blocks`: the last blocks, at least 1. The last of them may be partly filled.
    """

    num_sink_blocks: int
    top_k: int
    num_recent_blocks: int

    @property
    def num_blocks(self) -> int:
        """The largest number of blocks that a row keeps."""
        return self.num_sink_blocks + self.top_k + self.num_recent_blocks

    def num_candidates(self, lengths: _Lengths, block_size: int) -> _Lengths:
        """The number of blocks between the first and the last ones of sequences of these lengths (an int or an array).

        It is negative if the first and the last ones overlap. If it exceeds `top_k`, a sparse row leaves blocks out.
        """
        return -(-lengths // block_size) - self.num_sink_blocks - self.num_recent_blocks


@dataclass(frozen=True, slots=True)
class SparseRows:
    """A batch in which some rows may leave blocks out.

    - `is_sparse` int32 [rows], 0 or 1.
    - `budget`: the number of blocks that a sparse row keeps.
    """

    metadata: AttentionMetadata
    is_sparse: Tensor
    budget: BlockBudget


@dataclass(frozen=True, slots=True)
class KeySummaries:
    """Summaries of the keys of one layer; a block's summary is computed when a row first needs it.

    - `kind`: one of `SUMMARY_PARTS`.
    - `vectors` [num_blocks, kv_heads, parts, head_dim], of the cache's dtype.
    - `known` uint8 [num_blocks]: 1 if a block has a summary. After each write to a block, the caller sets it to 0.
    """

    kind: str
    vectors: Tensor
    known: Tensor


def _score_blocks(query: Array, key_cache: Array, rows: SparseRows, scale: float, summaries: KeySummaries) -> Array:
    metadata = rows.metadata
    starts = metadata.query_starts.tolist()
    shares = np.zeros((len(metadata.slots), metadata.block_tables.shape[1]), np.float32)
    for row, first, end in _selecting_rows(key_cache, rows):
        candidates = metadata.block_tables[metadata.slots[row], first:end]
        _summarise(key_cache, candidates[summaries.known[candidates] == 0], summaries)
        scaled = widened(query[starts[row]]) * np.float32(scale)
        shares[row, : end - first] = _shares(scaled, widened(summaries.vectors[candidates]))
    return shares


@op(reference=_score_blocks, triton="pyllm_kernels.gpu.block_selection")
def score_blocks(query: Tensor, key_cache: Tensor, rows: SparseRows, scale: float, summaries: KeySummaries) -> Tensor:
    """Score the blocks that sparse rows choose from in one layer: float32 [rows, max_blocks].

    query [tokens, heads, head_dim] and key_cache as in `paged_attention`; scale as in `AttentionLayer`. A row chooses
    if it is sparse, has one token, and has more blocks than the budget. Its candidates are its blocks without the first
    `num_sink_blocks` and the last `num_recent_blocks`. Column i of its row is the share of candidate i; all other
    entries are undefined. A share is the softmax of a head's scores over the candidates, summed over the heads. A score
    is `query @ mean`, or by bounds the most that `query @ key` can be (Quest, arXiv 2406.10774). If ranks share a
    layer's heads, the layer's shares are the sum of theirs.

    Computes missing summaries. A row's shares do not depend on other rows.
    """
    shares = graph.empty((len(rows.metadata.slots), rows.metadata.block_tables.shape[1]), query, "float32")
    _cpu.ops.score_blocks(query, key_cache, rows, scale, summaries, shares)
    return shares


def _select_blocks(shares: Array, key_cache: Array, rows: SparseRows) -> AttentionMetadata:
    metadata, budget = rows.metadata, rows.budget
    tables, lengths = metadata.block_tables[metadata.slots], metadata.sequence_lengths.copy()
    for row, first, end in _selecting_rows(key_cache, rows):
        order = np.argsort(-shares[row, : end - first], kind="stable")  # the first of equal shares
        kept = tables[row, first:end][np.sort(order[: budget.top_k])]
        chosen = np.concatenate((tables[row, :first], kept, tables[row, end : end + budget.num_recent_blocks]))
        tables[row, : len(chosen)] = chosen
        lengths[row] -= (end - first - budget.top_k) * key_cache.shape[1]
    slots = np.arange(len(metadata.slots), dtype=np.int32)
    return replace(metadata, block_tables=tables, slots=slots, sequence_lengths=lengths, tasks=None)


@op(reference=_select_blocks, triton="pyllm_kernels.gpu.block_selection")
def select_blocks(shares: Tensor, key_cache: Tensor, rows: SparseRows) -> AttentionMetadata:
    """The batch for `paged_attention` in one layer: the block tables of sparse rows leave some blocks out.

    shares float32 [rows, max_blocks]: the result of `score_blocks` for the same rows. A row that chooses keeps its
    first and last blocks, and between them the blocks with the greatest shares, the first among equals. Blocks stay in
    order, so a row that keeps all its blocks gets the same bits as a row that is not sparse.

    A row's length becomes that of its kept blocks. Attention stays correct, as the keys in the cache are already
    rotated. Only the shape of the cache is used. The result has no `tasks`; the layer must have no window.
    """
    metadata = rows.metadata
    num_rows, max_blocks = len(metadata.slots), metadata.block_tables.shape[1]
    tables = graph.empty((num_rows, max_blocks), shares, "int32")
    slots, lengths = graph.empty((num_rows,), shares, "int32"), graph.empty((num_rows,), shares, "int32")
    _cpu.ops.select_blocks(shares, key_cache, rows, tables, slots, lengths)
    return replace(metadata, block_tables=tables, slots=slots, sequence_lengths=lengths)


def _selecting_rows(key_cache: Array, rows: SparseRows) -> Iterator[tuple[int, int, int]]:
    """The rows that leave blocks out, with the first and the end of their candidate blocks."""
    budget = rows.budget
    starts, may_choose = rows.metadata.query_starts.tolist(), rows.is_sparse.tolist()
    for row, length in enumerate(rows.metadata.sequence_lengths.tolist()):
        candidates = budget.num_candidates(length, key_cache.shape[1])
        if may_choose[row] and starts[row + 1] - starts[row] == 1 and candidates > budget.top_k:
            yield row, budget.num_sink_blocks, budget.num_sink_blocks + candidates


def _summarise(key_cache: Array, blocks: Array, summaries: KeySummaries) -> None:
    keys = widened(key_cache[blocks])  # [blocks, block_size, kv_heads, head_dim]
    is_mean = summaries.kind == "mean"
    parts = keys.mean(1, keepdims=True) if is_mean else np.stack((keys.max(1), keys.min(1)), axis=1)
    summaries.vectors[blocks] = parts.swapaxes(1, 2).astype(key_cache.dtype)
    summaries.known[blocks] = 1


def _shares(query: Floats, summaries: Floats) -> Floats:
    """Each block's share of a token's attention, summed over the heads, if all keys of a block have its score.

    query [heads, head_dim], scaled; summaries [blocks, kv_heads, parts, head_dim] -> [blocks].
    """
    _, kv_heads, parts, head_dim = summaries.shape
    query = query.reshape(kv_heads, -1, head_dim)
    by_part = (query,) if parts == 1 else (np.maximum(query, 0), np.minimum(query, 0))
    scores = sum(part @ summaries[:, :, index].transpose(1, 2, 0) for index, part in enumerate(by_part))
    shares: Floats = softmax(np.asarray(scores)).sum((0, 1))
    return shares
