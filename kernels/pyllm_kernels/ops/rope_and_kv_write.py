"""The rotation of queries and keys, and the write to the KV cache."""

from pyllm_kernels import cpu, paged_reference
from pyllm_kernels.metadata import UNSCALED, KVScales, QKNorm
from pyllm_kernels.op import op
from pyllm_kernels.tensors import Tensor


@op(reference=paged_reference.rope_and_kv_write, triton="pyllm_kernels.gpu.rope")
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
    cpu.rope_and_kv_write(
        query, key, value, positions, cos_sin, slot_mapping, key_cache, value_cache, norm, scales, query_scales
    )
