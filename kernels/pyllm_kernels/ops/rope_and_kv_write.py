"""The rotation of queries and keys, and the write to the KV cache."""

import numpy as np

from pyllm_kernels import _cpu
from pyllm_kernels.metadata import UNSCALED, KVScales, QKNorm
from pyllm_kernels.op import op
from pyllm_kernels.ops.norm import rms_norm
from pyllm_kernels.tensors import Array, Floats, Tensor, dtype_name, widened

_LARGEST_FP8 = np.float32(448)  # of e4m3


def _rope_and_kv_write(
    query: Array,
    key: Array,
    value: Array,
    positions: Array,
    cos_sin: Array,
    slot_mapping: Array,
    key_cache: Array,
    value_cache: Array,
    norm: QKNorm | None = None,
    scales: KVScales = UNSCALED,
    query_scales: Array | None = None,
) -> None:
    if norm is not None and not norm.after_rotation:
        _normalise(query, key, norm)
    cos, sin = np.split(cos_sin[positions][:, None], 2, axis=-1)  # [tokens, 1, rotary_size / 2] each
    _rotate(query, cos, sin, None if query_scales is None else query_scales[positions][:, None, None])
    _rotate(key, cos, sin, None)
    if norm is not None and norm.after_rotation:
        _normalise(query, key, norm)
    written = slot_mapping >= 0
    cells = slot_mapping[written]
    _write(key_cache, cells, widened(key[written]) / np.float32(scales.key))
    _write(value_cache, cells, widened(value[written]) / np.float32(scales.value))


@op(reference=_rope_and_kv_write, triton="pyllm_kernels.gpu.rope")
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

    - query [tokens, heads, head_dim]; key, value [tokens, kv_heads, head_dim]: heads contiguous, tokens any stride. A
      value may be narrower: it has the first numbers of its place in the cache, and the others stay.
    - positions int32 [tokens]; cos_sin float32 [max_position, rotary_size]: first the cosines, then the sines;
      an even rotary_size up to head_dim, 0 for a layer without positions.
    - slot_mapping int32 [tokens]: `block * block_size + offset` in the cache; a negative entry writes nothing.
    - key_cache, value_cache [num_blocks, block_size, kv_heads, head_dim], contiguous, but blocks may be apart, by a
      multiple of a token's features. Key and value are rounded to their dtype, and clamped to the range of fp8 (e4m3),
      which only GPUs take. Where both are the same memory, value must be key.
    - norm: `rms_norm` of each head of query and key, in place, before the rotation or after it.
    - scales: key and value are divided by them when they are written to an fp8 cache.
    - query_scales float32 [max_position]: the rotated query is multiplied by the entry for its position. A norm after
      the rotation would undo that: `ValueError`.
    """
    if scales != UNSCALED:
        raise ValueError(f"{scales} are for caches in fp8, which a CPU does not have")
    tensors = query, key, value, positions, cos_sin, slot_mapping, key_cache, value_cache
    _cpu.ops.rope_and_kv_write(*tensors, norm, query_scales)


def _rope(query: Array, positions: Array, cos_sin: Array) -> None:
    cos, sin = np.split(cos_sin[positions][:, None], 2, axis=-1)
    _rotate(query, cos, sin, None)


@op(reference=_rope, triton="pyllm_kernels.gpu.rope")
def rope(query: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
    """Rotate a query alone, as `rope_and_kv_write` does, for a layer that reads the keys and values of another one."""
    _cpu.ops.rope(query, positions, cos_sin)


def _normalise(query: Array, key: Array, norm: QKNorm) -> None:
    query[...] = rms_norm.reference(query, norm.query_weight, norm.epsilon)
    key[...] = rms_norm.reference(key, norm.key_weight, norm.epsilon)


def _rotate(heads: Array, cos: Floats, sin: Floats, factors: Floats | None) -> None:
    wide, half = widened(heads), cos.shape[-1]
    first, second, rest = np.split(wide, (half, 2 * half), axis=-1)
    rotated = np.concatenate((first * cos - second * sin, second * cos + first * sin, rest), axis=-1)
    heads[...] = rotated if factors is None else rotated * factors


def _write(cache: Array, cells: Array, numbers: Floats) -> None:
    if dtype_name(cache.dtype) == "float8_e4m3fn":
        numbers = np.clip(numbers, -_LARGEST_FP8, _LARGEST_FP8)
    cache[(*np.divmod(cells, cache.shape[1]), slice(None), slice(numbers.shape[-1]))] = numbers.astype(cache.dtype)
