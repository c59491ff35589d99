"""Causal attention over the paged KV cache: position, write, read. Knows no projection, nor who hooks in."""

from torch import Tensor

from pyllm.workers.context import ForwardContext


class PagedAttention:
    """The attention of one layer, over this rank's heads."""

    def __init__(self, layer: int, head_dim: int) -> None:
        self._layer = layer
        self._scale = head_dim**-0.5

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, context: ForwardContext) -> Tensor:
        """Rotate query and key in place, store key and value, attend: all [tokens, heads of this rank, head_dim]."""
        for hook in context.hooks:
            hook.before_attention(self._layer, context)
        keys, values = context.kv_cache.layers[self._layer]
        kernels = context.kernels
        kernels.rope_and_kv_write(
            query, key, value, context.positions, context.cos_sin, context.slot_mapping, keys, values
        )
        output = kernels.paged_attention(query, keys, values, context.attention, self._scale)
        for hook in context.hooks:
            output = hook.after_attention(self._layer, output, context)
        return output
