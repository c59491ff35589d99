"""Attention over the paged KV cache."""

from pyllm_kernels import cpu, paged_reference
from pyllm_kernels.metadata import AttentionLayer, AttentionMetadata, AttentionShape
from pyllm_kernels.op import op
from pyllm_kernels.tensors import Tensor


@op(reference=paged_reference.plan_attention, triton="pyllm_kernels.gpu.attention")
def plan_attention(
    metadata: AttentionMetadata, shape: AttentionShape, planned: AttentionMetadata | None = None
) -> AttentionMetadata:
    """The metadata with the task map of one step, for every layer of that shape.

    `planned` is the result for a batch with as many rows and tokens: its task map is overwritten, so that a graph that
    reads it gets this step's. Without this call `paged_attention` makes its own, which costs one or two kernels a layer
    on a GPU.
    """
    return paged_reference.plan_attention(metadata, shape, planned)


@op(reference=paged_reference.paged_attention, triton="pyllm_kernels.gpu.attention")
def paged_attention(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, metadata: AttentionMetadata, layer: AttentionLayer
) -> Tensor:
    """Causal attention of each row's query tokens over the row's cached tokens (arXiv 2309.06180).

    query [tokens, heads, head_dim] (tokens any stride); key_cache, value_cache
    [num_blocks, block_size, kv_heads, head_dim] of query's dtype, or fp8 (e4m3); on a CPU float32 and bfloat16 can be
    mixed -> [tokens, heads, head_dim].

    Token j of a row of Q queries and L cached tokens is at position L - Q + j, attends to the positions up to its own,
    and its keys are in the cache already. Query head h reads KV head `h // (heads // kv_heads)`. `layer` has the scale,
    window and cap of scores, and sinks; softmax and sums are float32. Block-table entries before every window of a row
    are not read. A row's result does not depend on other rows; only on a GPU without `batch_invariant` in the metadata,
    the grouping of its positions in the sums does.
    """
    return cpu.paged_attention(query, key_cache, value_cache, metadata, layer)
