"""The public ops, with their shapes, dtypes and guarantees. The tensors' device picks the backend.

Does not know how any op is computed: `reference.py` and `paged_reference.py` specify that.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pyllm_kernels.block_selection import KeySummaries, SparseRows
from pyllm_kernels.cpu_linear import PackedLinear
from pyllm_kernels.dispatch import select
from pyllm_kernels.edits import LogitsEdits
from pyllm_kernels.experts import ClampedSwiglu, ExpertMatrices, Router
from pyllm_kernels.matrix_rows import MatrixRows, empty_bytes
from pyllm_kernels.metadata import UNSCALED, AttentionLayer, AttentionMetadata, AttentionShape, KVScales, QKNorm


def pack_linear(weight: Tensor) -> PackedLinear:
    """Pack a matrix [out_features, in_features] for `packed_linear`; the result may share its memory."""
    return select("auto", weight.device).pack_linear(weight)


def pack_rows(
    parts: Sequence[MatrixRows], weight_format: str, dtype: torch.dtype, room: Callable[[int], Tensor] = empty_bytes
) -> PackedLinear:
    """Pack rows of a file, the parts stacked by rows, for `packed_linear` with x of `dtype`.

    `weight_format` is the name of `dtype`; or one of `GGUF_BLOCKS`, the format of all rows: then each 32 features of x
    become integers with their own scale; or "int8": then a row of the matrix becomes integers from -127 to 127 with one
    float32 scale, its largest magnitude / 127, and a row of x integers from -16,256 to 16,256. int8 from `INT8_BLOCKS`
    stays in 4 bits, with two factors a group that expand them to 8 during the product. `room` returns the memory that
    Rust packs into, uint8 [bytes].

    Raises `NotFiniteError` if a number is not finite, and `ValueError` for rows that cannot be packed in this format.
    """
    return select("auto", "cpu").pack_rows(parts, weight_format, dtype, room)


def packed_linear(x: Tensor, packed: PackedLinear, out: Tensor | None = None) -> Tensor:
    """`x @ weight.T`; x [tokens, in_features], contiguous, of the packed dtype -> [tokens, out_features].

    Sums are float32 and rounded once. On a CPU, except for float16, a row's result does not depend on other rows.
    `out`, if given, gets the result and is returned; it may be some columns of a wider tensor.
    """
    return select("auto", x.device).packed_linear(x, packed, out)


def packed_rows(packed: PackedLinear, rows: Tensor) -> Tensor:
    """Some rows of the matrix, as numbers of the packed dtype; rows int32 [n], contiguous -> [n, in_features]."""
    return select("auto", rows.device).packed_rows(packed, rows)


def linear_w4a16(x: Tensor, integers: Tensor, scales: Tensor, minimums: Tensor, out: Tensor | None = None) -> Tensor:
    """`x @ weight.T` with 4-bit weights, each `scale * integer + minimum` rounded to x's dtype (arXiv 2306.00978).

    - x [tokens, in_features], contiguous, float32, float16 or bfloat16.
    - integers uint8 [out_features, in_features / 2]: in a row, 16 bytes hold 32 features. Byte i of the 16 has feature
      i in its low half and feature i + 16 in its high half, so that the halves need no interleaving.
      This is the order of GGUF's q4_0 and q4_1.
    - scales and minimums float16 [out_features, in_features / group_size]; group_size is a multiple of 32.
    - out [tokens, out_features] of x's dtype: gets the result and is returned; may be some columns of a wider tensor.

    Returns [tokens, out_features] of x's dtype. Sums are float32 and rounded once. In Triton, except for float32, the
    number of rows picks one of two tiles. Both tiles add up features in the same steps. That this makes rows bitwise
    equal across the two tiles has not been tested on a GPU.

    Raises `ValueError` for shapes, strides and dtypes that do not fit.
    """
    return select("auto", x.device).linear_w4a16(x, integers, scales, minimums, out)


def linear_w8a16(x: Tensor, integers: Tensor, scales: Tensor, out: Tensor | None = None) -> Tensor:
    """`x @ weight.T` with 8-bit weights, each `scale * integer` rounded to x's dtype; x is not quantised.

    - x [tokens, in_features], contiguous, float32, float16 or bfloat16.
    - integers int8 [out_features, in_features].
    - scales float16 [out_features, in_features / group_size]; group_size is a multiple of 32.
    - out, results and tiles as for `linear_w4a16`, with the same limits of tests.

    Raises `ValueError` for shapes, strides and dtypes that do not fit.
    """
    return select("auto", x.device).linear_w8a16(x, integers, scales, out)


def linear_w8a8(x: Tensor, integers: Tensor, scales: Tensor, out: Tensor | None = None) -> Tensor:
    """`x @ weight.T` with int8 weights, and x in int8, too (arXiv 2211.10438): `(x_scale * scale) * sum`.

    A row of x becomes integers from -127 to 127, halves to even, with one scale: its largest magnitude / 127. Sums of
    products are int32, and exact. A row of x with a NaN or an infinity gives NaNs.

    - x [tokens, in_features], contiguous, float32, float16 or bfloat16; up to 132,104 features.
    - integers int8 [out_features, in_features] and scales float32 [out_features]: the weight is scale * integer.
    - out as for `linear_w4a16`.

    Returns [tokens, out_features] of x's dtype. A row's result does not depend on other rows.

    Raises `ValueError` for shapes, strides and dtypes that do not fit.
    """
    return select("auto", x.device).linear_w8a8(x, integers, scales, out)


def linear_fp8(
    x: Tensor, weight: Tensor, scales: Tensor, out: Tensor | None = None, block: tuple[int, int] = (128, 128)
) -> Tensor:
    """`x @ weight.T` with fp8 (e4m3) weights and scales (arXiv 2209.05433; blocks as in arXiv 2412.19437).

    - x [tokens, in_features], contiguous, float32, float16 or bfloat16.
    - weight float8_e4m3fn [out_features, in_features].
    - scales float32 [rows, columns], the factors of the weights. There is 1 row for all outputs, one for each output,
      or one for each block[0] outputs; 1 column for all features, or one for each block[1].
    - out as for `linear_w4a16`.
    - block: outputs, and features in a multiple of 64. The last block of a side may be smaller.

    Returns [tokens, out_features] of x's dtype. Each weight is exact in x's dtype; sums and scales are float32, rounded
    once. Triton's tiles are as for `linear_w4a16`, with the same limits of tests. x stays in its dtype: products of fp8
    with fp8 need Ada or Hopper, while this runs on each card that Triton supports.

    Raises `ValueError` for shapes, strides and dtypes that do not fit.
    """
    return select("auto", x.device).linear_fp8(x, weight, scales, out, block)


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """`x / sqrt(mean(x²) + epsilon) * weight` over the last dimension, in float32 (arXiv 1910.07467).

    x [tokens, hidden] and weight [hidden], float32, float16 or bfloat16 -> [tokens, hidden] of x's dtype.
    """
    return select("auto", x.device).rms_norm(x, weight, epsilon)


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, epsilon: float, factor: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Add x to the residual stream and normalise the sum; return the normalised sum and `add(x, residual, factor)`.

    x, residual [tokens, hidden] of one dtype; the sum is rounded to that dtype before it is normalised, so that the
    norm is that of the stream for the next layer. Both inputs stay unchanged.
    """
    return select("auto", x.device).add_rms_norm(x, residual, weight, epsilon, factor)


def layer_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """`(x - mean) / sqrt(variance + epsilon) * weight` over the last dimension, in float32 (arXiv 1607.06450).

    Shapes and dtypes as for `rms_norm`. There is no bias.
    """
    return select("auto", x.device).layer_norm(x, weight, epsilon)


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, epsilon: float, factor: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Like `add_rms_norm`, with `layer_norm`."""
    return select("auto", x.device).add_layer_norm(x, residual, weight, epsilon, factor)


def add(x: Tensor, residual: Tensor, factor: float = 1.0) -> Tensor:
    """`x * factor + residual` in float32, rounded once to x's dtype; both [tokens, hidden] of one dtype."""
    return select("auto", x.device).add(x, residual, factor)


def add_bias(x: Tensor, bias: Tensor) -> Tensor:
    """Add `bias` [n], of x's dtype or float32, to each row of x [tokens, n] in place; return x."""
    return select("auto", x.device).add_bias(x, bias)


def scale_and_cap(x: Tensor, factor: float, cap: float | None = None) -> Tensor:
    """Multiply x [tokens, n] by a factor in place; with a cap, make each number `cap * tanh(number / cap)`; return x.

    Computes in float32 and rounds once. For logits and embeddings (Gemma 2, arXiv 2408.00118).
    """
    return select("auto", x.device).scale_and_cap(x, factor, cap)


def rope_and_kv_write(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    slot_mapping: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    norm: QKNorm | None = None,
    scales: KVScales = UNSCALED,
    query_scales: Tensor | None = None,
) -> None:
    """Rotate query and key in place by their positions (arXiv 2104.09864), and write key and value into the cache.

    The two halves of a head's first rotary_size dimensions form its pairs, as in Llama and GPT-NeoX:
    `first * cos - second * sin` and `second * cos + first * sin`, in float32. The other dimensions stay.

    - query [tokens, heads, head_dim]; key, value [tokens, kv_heads, head_dim]: heads contiguous, tokens any stride.
    - positions int32 [tokens]; cos_sin float32 [max_position, rotary_size]: first the cosines, then the sines;
      an even rotary_size up to head_dim, 0 for a layer without positions.
    - slot_mapping int32 [tokens]: `block * block_size + offset` in the cache; a negative entry writes nothing.
    - key_cache, value_cache [num_blocks, block_size, kv_heads, head_dim], contiguous; key and value are rounded to
      their dtype, and clamped to the range of fp8 (e4m3). On a CPU float32 and bfloat16 can be mixed.
    - norm: `rms_norm` of each head of query and key, in place, before the rotation.
    - scales: key and value are divided by them when they are written to an fp8 cache.
    - query_scales float32 [max_position]: the rotated query is multiplied by the entry for its position.
    """
    kernels = select("auto", query.device)
    tensors = query, key, value, positions, cos_sin, slot_mapping, key_cache, value_cache
    kernels.rope_and_kv_write(*tensors, norm, scales, query_scales)


def activation(x: Tensor, kind: str, gated: bool = True) -> Tensor:
    """`act(gate) * up` in float32 (arXiv 2002.05202); x [tokens, 2n] is the gate, then up -> [tokens, n] of x's dtype.

    The kind is "silu", "gelu" (by the error function) or "gelu_tanh" (arXiv 1606.08415). Not gated: `act(x)`,
    [tokens, n] -> [tokens, n].
    """
    return select("auto", x.device).activation(x, kind, gated)


def experts(x: Tensor, logits: Tensor, router: Router, kind: str | ClampedSwiglu, matrices: ExpertMatrices) -> Tensor:
    """Mixture of experts (arXiv 1701.06538): the sum of `weight * expert(x)` over the experts chosen for each token.

    x [tokens, hidden] and the router's logits [tokens, experts], of one dtype -> [tokens, hidden]. An expert is
    `down(act(gate(x)) * up(x))`, with activations as in `activation`, or has a clamped gate; biases are added in
    float32. Of equal scores the first experts are chosen. Results are added in float32, in the order of the experts;
    experts of other ranks add nothing. On a CPU a token's result does not depend on other tokens. In Triton, except for
    float32, the number of tokens picks one of two tiles, as for `linear_w4a16`; `batch_invariant` uses one tile, and
    then a token's result does not depend on other tokens.

    Raises `ValueError` for shapes, strides and dtypes that do not fit.
    """
    return select("auto", x.device).experts(x, logits, router, kind, matrices)


def plan_attention(
    metadata: AttentionMetadata, shape: AttentionShape, planned: AttentionMetadata | None = None
) -> AttentionMetadata:
    """The metadata with the task map of one step, for every layer of that shape.

    `planned` is the result for a batch with as many rows and tokens: its task map is overwritten, so that a graph that
    reads it gets this step's. Without this call `paged_attention` makes its own, which costs one or two kernels a layer
    on a GPU.
    """
    return select("auto", metadata.slots.device).plan_attention(metadata, shape, planned)


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
    return select("auto", query.device).paged_attention(query, key_cache, value_cache, metadata, layer)


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
    return select("auto", query.device).score_blocks(query, key_cache, rows, scale, summaries)


def select_blocks(shares: Tensor, key_cache: Tensor, rows: SparseRows) -> AttentionMetadata:
    """The batch for `paged_attention` in one layer: the block tables of sparse rows leave some blocks out.

    shares float32 [rows, max_blocks]: the result of `score_blocks` for the same rows. A row that chooses keeps its
    first and last blocks, and between them the blocks with the greatest shares, the first among equals. Blocks stay in
    order, so a row that keeps all its blocks gets the same bits as a row that is not sparse.

    A row's length becomes that of its kept blocks. Attention stays correct, as the keys in the cache are already
    rotated. Only the shape of the cache is used. The result has no `tasks`; the layer must have no window.
    """
    return select("auto", shares.device).select_blocks(shares, key_cache, rows)


def copy_blocks(key_cache: Tensor, value_cache: Tensor, copies: Tensor) -> None:
    """Copy whole blocks within both caches, one after the other; copies int32 [n, 2] of (source, destination)."""
    select("auto", key_cache.device).copy_blocks(key_cache, value_cache, copies)


def swap_blocks(cache: Tensor, host_blocks: Tensor, swaps: Tensor) -> None:
    """Copy whole blocks, all layers of each, between the cache and host memory.

    - cache [layers, 2, num_blocks, *block], the keys and the values of each layer.
    - host_blocks [num_host_blocks, layers, 2, *block], of cache's dtype: all layers of a block are contiguous.
    - swaps int32 [n, 3] in host memory, of (direction, device block, host block). First all swaps of direction 0
      copy from device to host, then all swaps of direction 1 from host to device, each in the given order.

    With pinned host_blocks, a CUDA device does this in the order of its stream and the caller does not wait: only ops
    on the same stream may use either side then.
    """
    select("auto", cache.device).swap_blocks(cache, host_blocks, swaps)


def gather_blocks(cache: Tensor, staged: Tensor, blocks: Tensor) -> None:
    """Copy some blocks of the cache, all layers of each, to contiguous memory.

    - cache [layers, 2, num_blocks, *block], the keys and the values of each layer.
    - staged [n, layers, 2, *block], of cache's dtype and contiguous.
    - blocks int32 [n] of any stride, the block of the cache for each block of staged.
    """
    select("auto", cache.device).gather_blocks(cache, staged, blocks)


def scatter_blocks(cache: Tensor, staged: Tensor, blocks: Tensor) -> None:
    """The reverse of `gather_blocks`: from staged to the cache. No block may occur twice."""
    select("auto", cache.device).scatter_blocks(cache, staged, blocks)


def edit_logits(
    logits: Tensor,
    rows: Tensor,
    edits: LogitsEdits,
    mask_rows: Tensor | None = None,
    masks: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """A float32 copy of some rows of logits, masked, then edited; logits [rows, vocabulary] -> [samples, vocabulary].

    - rows int32 [samples], the row of each sample; edits have a row for each sample.
    - masks int32 or uint32 [masks, words]: token t is allowed if bit t % 32 of word t // 32 is set; the logit of any
      other token, or of one without a word, becomes minus infinity. Bits beyond the vocabulary are ignored.
    - mask_rows int32 [samples], the mask of each sample; -1: none.
    - out float32 [samples, vocabulary]: gets the result and is returned; reused memory costs a CPU a third of what new
      memory does.

    A GPU does not wait for the host. On a CPU, indices out of range raise an `IndexError`.
    """
    return select("auto", logits.device).edit_logits(logits, rows, edits, mask_rows, masks, out)


def logprobs(logits: Tensor, rows: Tensor, chosen: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities of a token for each sample, and of the likeliest tokens, from unedited logits.

    logits [rows, vocabulary], with a finite maximum; rows and chosen int32 [samples], the row and token of each sample
    -> ids int32 and values float32 [samples, 1 + num_top], ranks int32 [samples]. The token itself comes first,
    then the likeliest, best first, the lower id first among equals. The rank is the number of logits that are at least
    as great as the token's. A row's result does not depend on other rows, also on a GPU; a NaN counts as minus
    infinity.
    """
    return select("auto", logits.device).logprobs(logits, rows, chosen, num_top)
