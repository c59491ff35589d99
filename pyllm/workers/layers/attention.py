"""Attention over the paged KV cache: rotation, write, read. Knows neither projections nor the use of hooks."""

from collections.abc import Callable

from pyllm_kernels import UNSCALED, AttentionLayer, KVScales, QKNorm
from pyllm_kernels.ops.elementwise import scale_and_cap
from pyllm_kernels.ops.paged_attention import paged_attention
from pyllm_kernels.ops.rope_and_kv_write import rope, rope_and_kv_write
from pyllm_kernels.ops.token_selection import TokenSelection, cells_of
from pyllm_kernels.tensors import Tensor

from pyllm.families.spec import AttentionSpec
from pyllm.workers.layers.forward_context import ForwardContext


class PagedAttention:
    """The attention of one layer, over this rank's heads; query and key may be normalised, and the cache scaled.

    `sinks` are the logits of this rank's heads that take a share of the softmax, `slopes` the slopes of these heads,
    `relative_bias` their bias by distance; all are float32. A layer that reads the keys and values of another one has
    neither of its own, and calls no hooks.
    """

    def __init__(
        self,
        layer: int,
        spec: AttentionSpec,
        norm: QKNorm | None = None,
        scales: KVScales = UNSCALED,
        *,
        sinks: Tensor | None = None,
        slopes: Tensor | None = None,
        relative_bias: Tensor | None = None,
    ) -> None:
        self._layer = layer
        self._kv_source = spec.kv_source
        self._rope = spec.rope
        self._has_query_scales = spec.query_scaling is not None
        self._kernel = AttentionLayer(
            scale=spec.scale * scales.key,
            window=spec.window,
            bidirectional=spec.bidirectional,
            soft_cap=spec.soft_cap,
            sinks=sinks,
            slopes=slopes,
            relative_bias=relative_bias,
            value_start=spec.value_start,
            value_size=spec.value_size,
        )
        self._norm = norm
        self._scales = scales
        self._value_scale = scales.value * spec.value_scale

    def shared(self, query: Tensor, context: ForwardContext) -> Tensor:
        """Rotate the query in place, attend to the keys and values of another layer."""
        assert self._kv_source is not None, "the layer has its own keys and values"
        group, keys, values = context.kv_cache.layers[self._kv_source]
        context.kernels[rope](query, context.positions, context.position_tables.rotation(self._rope))
        return context.kernels[paged_attention](query, keys, values, context.attention[group], self._kernel)

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        context: ForwardContext,
        select: Callable[[], TokenSelection] | None = None,
    ) -> Tensor:
        """Rotate query and key in place, store key and value, attend: all [tokens, heads of this rank, head_size].

        With `select` keys and values are both the first numbers of cached vectors, as many as a query has, and each
        token attends to those that it chooses once these are stored.
        """
        for hook in context.hooks:
            hook.before_attention(self._layer)
        cached = context.kv_cache.layers[self._layer]
        group, keys, values = cached
        if select is not None:
            keys = values = keys[..., : query.shape[2]]
        tables = context.position_tables
        context.kernels[rope_and_kv_write](
            query,
            key,
            value,
            context.positions,
            tables.rotation(self._rope),
            context.slot_mapping[group],
            keys,
            values,
            self._norm,
            self._scales,
            tables.query_scales if self._has_query_scales else None,
        )
        metadata, selector = context.attention[group], context.selector
        if select is not None:
            metadata = select().metadata(metadata)
            keys = values = cells_of(keys)
        if selector is not None:
            metadata = selector.attention_begin(self._layer, query, metadata, self._kernel)
        output = context.kernels[paged_attention](query, keys, values, metadata, self._kernel)
        if selector is not None:
            selector.attention_finished(self._layer, output)
        if self._value_scale != 1:
            # Of an output with other strides this is a copy.
            scaled = context.kernels[scale_and_cap](output.reshape(len(output), -1), self._value_scale)
            output = scaled.reshape(output.shape)
        for hook in context.hooks:
            output = hook.after_attention(self._layer, output, cached, context.attention[group])
        return output
