"""Selects the first blocks, the last ones, and between them the blocks with the highest scores by key summaries.

Quest (arXiv 2406.10774) uses bounds of keys, InfLLM and MoBA (arXiv 2402.04617, 2502.13189) means. All heads of a layer
read the same blocks, also on several ranks. Scoring and selection are two ops of the kernels. On one rank a captured
step contains them. Several ranks exchange scores between the two, so they run without graphs. Knows no plan.
"""

from collections.abc import Sequence

import numpy as np
from pyllm_kernels import (
    SUMMARY_PARTS,
    AttentionLayer,
    AttentionMetadata,
    BlockBudget,
    Kernels,
    KeySummaries,
    SparseRows,
)
from pyllm_kernels.ops.block_selection import score_blocks, select_blocks
from pyllm_kernels.tensors import Tensor, numpy_dtype

from pyllm.workers.kv.kv_cache import KVCache
from pyllm.workers.layers.rank_group import RankGroup
from pyllm.workers.step.attention_batch import Ints
from pyllm.workers.step.step_rows import StepRows


class TopKSelector:
    """A `KVSelector` for some `layers` of a KV cache; `kind` is one of `SUMMARY_PARTS`.

    `group` has the ranks that share the heads of a layer. They select by the sum of their shares, so the selection is
    that of one rank with all heads, except for the rounding of the sum. Each layer exchanges 4 bytes for each row and
    candidate block.

    A block's summaries are computed from the cache when a row first needs them, and dropped when the block is written.
    All summaries together take `parts / (2 * block_size)` of the cache's memory.
    """

    def __init__(
        self,
        kernels: Kernels,
        kv_cache: KVCache,
        layers: Sequence[int],
        kind: str,
        budget: BlockBudget,
        *,
        max_rows: int,
        group: RankGroup,
    ) -> None:
        self.in_graphs = group.size == 1  # The exchange between ranks is no op of the kernels.
        self._group = group
        self._kernels = kernels
        self._keys = {layer: kv_cache.layers[layer].keys for layer in layers}
        self._budget = budget
        num_blocks, self._block_size, kv_heads, head_dim = kv_cache.memory.shape[2:]
        # Zeros take no memory until they are touched. The flags of a layer are contiguous.
        shape = len(layers), num_blocks, kv_heads, SUMMARY_PARTS[kind], head_dim
        vectors = np.zeros(shape, numpy_dtype(kv_cache.shape.dtype))
        self._known = np.zeros((len(layers), num_blocks), np.uint8)
        parts = zip(layers, vectors, self._known, strict=True)
        self._summaries = {layer: KeySummaries(kind, of_layer, known) for layer, of_layer, known in parts}
        self._is_sparse = np.zeros(max_rows, np.int32)
        self._selecting, self._most_candidates = np.empty(0, np.int64), 0

    def blocks_written(self, blocks: Ints) -> None:
        """Drop the summaries of these blocks. Blocks of other groups never have any."""
        self._known[:, blocks] = 0

    def execute_begin(self, rows: StepRows) -> None:
        """Store which rows are sparse, in memory that a captured step reads, and which shares the ranks exchange."""
        self._is_sparse[: len(rows.is_sparse)] = rows.is_sparse
        if self._group.size > 1:
            candidates = self._budget.num_candidates(rows.sequence_lengths, self._block_size)
            has_choice = (rows.is_sparse == 1) & (candidates > self._budget.top_k)
            self._selecting = np.flatnonzero(has_choice)
            self._most_candidates = int(candidates[has_choice].max(initial=0))

    def attention_begin(
        self, layer: int, query: Tensor, metadata: AttentionMetadata, attention: AttentionLayer
    ) -> AttentionMetadata:
        """Select blocks in the sparse layers; the other layers attend to all blocks."""
        keys = self._keys.get(layer)
        if keys is None:
            return metadata
        rows = SparseRows(metadata, self._is_sparse[: len(metadata.slots)], self._budget)
        shares = self._kernels[score_blocks](query, keys, rows, attention.scale, self._summaries[layer])
        if len(self._selecting):
            # Each rank has scored its own heads only.
            partial_shares = shares[self._selecting, : self._most_candidates]
            shares[self._selecting, : self._most_candidates] = self._group.sum(partial_shares)
        return self._kernels[select_blocks](shares, keys, rows)

    def attention_finished(self, layer: int, output: Tensor) -> None:
        """Do nothing."""

    def execute_finished(self) -> None:
        """Do nothing."""
