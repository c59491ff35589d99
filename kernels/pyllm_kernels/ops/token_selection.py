"""The choice of the tokens that a token attends to (DeepSeek Sparse Attention, arXiv 2512.02556)."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from pyllm_kernels import _cpu, graph
from pyllm_kernels.metadata import AttentionMetadata
from pyllm_kernels.op import op
from pyllm_kernels.tensors import Array, Tensor, widened


class TokenSelection(NamedTuple):
    """The cells that each token attends to: int32 [tokens, count], and their numbers [tokens].

    A cell is an index of `cells_of` a cache.
    """

    cells: Tensor
    lengths: Tensor

    def metadata(self, metadata: AttentionMetadata) -> AttentionMetadata:
        """The batch in which each token is a row, and its block table has its cells."""
        tokens = np.arange(len(self.lengths) + 1, dtype=np.int32)
        return replace(
            metadata,
            block_tables=self.cells,
            slots=tokens[:-1],
            query_starts=tokens,
            sequence_lengths=self.lengths,
            max_query_length=1,
            max_sequence_length=self.cells.shape[1],
            is_by_token=True,
        )


def cells_of(cache: Array) -> Array:
    """A cache [num_blocks, block_size, kv_heads, head_dim] as blocks of one token, [cells, 1, kv_heads, head_dim].

    Between blocks that are apart there are cells of no token.
    """
    num_blocks, block_size, *heads = cache.shape
    block, cell, *strides = cache.strides
    count = (num_blocks - 1) * (block // cell) + block_size
    view: Array = np.lib.stride_tricks.as_strided(cache, (count, 1, *heads), (cell, cell, *strides))
    return view


def _select_tokens(
    query: Array, weights: Array, key_cache: Array, metadata: AttentionMetadata, count: int
) -> TokenSelection:
    cells, lengths = np.zeros((len(query), count), np.int32), np.zeros(len(query), np.int32)
    block_size, (block, cell) = key_cache.shape[1], key_cache.strides[:2]
    starts, totals = metadata.query_starts.tolist(), metadata.sequence_lengths.tolist()
    for row, slot in enumerate(metadata.slots.tolist()):
        table = metadata.block_tables[slot].astype(np.int64)
        for token in range(starts[row], starts[row + 1]):
            positions = np.arange(totals[row] - (starts[row + 1] - token - 1))
            if len(positions) > count:
                keys = widened(key_cache[table[positions // block_size], positions % block_size, 0])
                products = np.maximum(widened(query[token]) @ keys.T, 0)  # [heads, positions]
                scores = widened(weights[token]) @ products
                positions = np.sort(np.argsort(-scores, kind="stable")[:count])  # those that are no numbers last
            blocks, offsets = np.divmod(positions, block_size)
            cells[token, : len(positions)] = table[blocks] * (block // cell) + offsets
            lengths[token] = len(positions)
    return TokenSelection(cells, lengths)


@op(reference=_select_tokens)
def select_tokens(
    query: Tensor, weights: Tensor, key_cache: Tensor, metadata: AttentionMetadata, count: int
) -> TokenSelection:
    """Choose for each token the `count` tokens up to itself with the largest scores, or all of them if they are fewer.

    A token's score is the sum over the heads of `weight * max(query @ key, 0)`, in float32; what is no number is the
    least, and of equal scores the first wins. The choice of a token depends on nothing but its sequence.

    query [tokens, heads, size], heads contiguous; weights [tokens, heads], of any dtype of floats; key_cache
    [num_blocks, block_size, 1, size], whose tokens may be apart, with the keys of this step's tokens.

    Raises `ValueError` for shapes, strides and dtypes that do not fit.
    """
    cells, lengths = (graph.empty((len(query), *rest), query, "int32") for rest in ((count,), ()))
    _cpu.ops.select_tokens(query, weights, key_cache, metadata, count, cells, lengths)
    return TokenSelection(cells, lengths)
