"""Causal attention over the paged KV cache: position, write, read. Knows no projection and no hook's purpose."""

from pyllm_kernels import KVScales, QKNorm
from torch import Tensor

from pyllm.workers.step.forward_context import ForwardContext

_UNSCALED = KVScales()


class PagedAttention:
    """The attention of one layer, over this rank's heads; query and key may be normalised, and the cache scaled."""

    def __init__(self, layer: int, head_dim: int, norm: QKNorm | None = None, scales: KVScales = _UNSCALED) -> None:
        self._layer = layer
        self._scale = head_dim**-0.5 * scales.key
        self._norm = norm
        self._scales = scales
        self._is_plain = norm is None and scales == _UNSCALED

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, context: ForwardContext) -> Tensor:
        """Rotate query and key in place, store key and value, attend: all [tokens, heads of this rank, head_dim]."""
        for hook in context.hooks:
            hook.before_attention(self._layer, context)
        keys, values = context.kv_cache.layers[self._layer]
        kernels = context.kernels
        tensors = query, key, value, context.positions, context.cos_sin, context.slot_mapping, keys, values
        if self._is_plain:
            kernels.rope_and_kv_write(*tensors)
        else:
            kernels.norm_rope_and_kv_write(self._norm, self._scales, *tensors)
        output = kernels.paged_attention(query, keys, values, context.attention, self._scale)
        if self._scales.value != 1:
            output.mul_(self._scales.value)
        for hook in context.hooks:
            output = hook.after_attention(self._layer, output, context)
        return output
