"""Sparse attention: the choice of the blocks that a row reads."""

from pyllm_kernels import cpu, paged_reference
from pyllm_kernels.block_selection import KeySummaries, SparseRows
from pyllm_kernels.metadata import AttentionMetadata
from pyllm_kernels.op import op
from pyllm_kernels.tensors import Tensor


@op(reference=paged_reference.score_blocks, triton="pyllm_kernels.paged_reference")
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
    return cpu.score_blocks(query, key_cache, rows, scale, summaries)


@op(reference=paged_reference.select_blocks, triton="pyllm_kernels.paged_reference")
def select_blocks(shares: Tensor, key_cache: Tensor, rows: SparseRows) -> AttentionMetadata:
    """The batch for `paged_attention` in one layer: the block tables of sparse rows leave some blocks out.

    shares float32 [rows, max_blocks]: the result of `score_blocks` for the same rows. A row that chooses keeps its
    first and last blocks, and between them the blocks with the greatest shares, the first among equals. Blocks stay in
    order, so a row that keeps all its blocks gets the same bits as a row that is not sparse.

    A row's length becomes that of its kept blocks. Attention stays correct, as the keys in the cache are already
    rotated. Only the shape of the cache is used. The result has no `tasks`; the layer must have no window.
    """
    return cpu.select_blocks(shares, key_cache, rows)
