"""A decoder-only transformer, or an encoder, built from its spec: the model for every family in `pyllm/families`.

Knows no family and no file; `WeightReader` fills the parameters, under the names of `families/parameter_shapes.py`.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import exp, log1p

import numpy as np
import numpy.typing as npt
from pyllm_kernels import LimitedSwiglu, PackedLinear, QKNorm, Xielu
from pyllm_kernels.ops.activation import activation
from pyllm_kernels.ops.elementwise import add, add_bias, clamp, scale_and_cap, sigmoid_gate, softplus_gate
from pyllm_kernels.ops.streams import gaussian_top_k
from pyllm_kernels.tensors import Tensor, numpy_dtype, split

from pyllm.families.spec import XIELU_BETA, AttentionSpec, FeedForwardSpec, ModelSpec
from pyllm.families.stage_layout import PipelineStage
from pyllm.workers.layers.attention import PagedAttention
from pyllm.workers.layers.experts import Experts
from pyllm.workers.layers.forward_context import ForwardContext
from pyllm.workers.layers.latent_attention import LatentAttention
from pyllm.workers.layers.linear import ColumnParallelLinear, RowParallelLinear
from pyllm.workers.layers.norm import Norm, SharedNorm
from pyllm.workers.layers.per_layer_inputs import PerLayerInput, PerLayerInputs
from pyllm.workers.layers.recurrence import recurrence_of
from pyllm.workers.layers.residual_streams import LayerStreams, StreamProjections
from pyllm.workers.layers.vocab_embedding import VocabularyParallelEmbedding, VocabularyParallelHead
from pyllm.workers.layers.weight_placement import WeightPlacement
from pyllm.workers.loaders.position_rows import POSITIONS, TYPES, position_reader
from pyllm.workers.loaders.relative_bias import read_relative_bias, relative_bias_size
from pyllm.workers.loaders.weights import WeightReader
from pyllm.workers.sampling.dense import DenseLayers, unit_length

_EMBEDDING = "embedding.weight"


class Attention:
    """Grouped-query self-attention (arXiv 2305.13245) with its projections."""

    def __init__(self, spec: AttentionSpec, hidden_size: int, layer: int, placement: WeightPlacement) -> None:
        self._head_size = spec.head_size
        self._kernels = placement.kernels
        query = placement.share_of_heads(spec.heads, spec.head_size)
        key_value = placement.share_of_heads(spec.kv_heads, spec.head_size)
        value = placement.share_of_heads(spec.kv_heads, spec.value_head_size)
        outputs = placement.share_of_heads(spec.heads, spec.value_head_size)
        self._clip = spec.clip
        self._gate = placement.kernels[softplus_gate if spec.gate_function == "softplus" else sigmoid_gate]
        self._names = tuple(spec.projections)
        gate = placement.share_of_heads(spec.heads, 1) if spec.head_gate else outputs
        by_name = {"query": query, "key": key_value, "value": value, "gate": gate}
        shares = [by_name[name] for name in self._names]
        self.qkv = ColumnParallelLinear(hidden_size, tuple(spec.projections.values()), placement, spec.bias, shares)
        self._num_heads = [size // spec.head_size for size in self.qkv.sizes]
        self._has_gate = spec.output_gate or spec.head_gate
        self._has_own_kv = spec.kv_source is None
        # The number of adjacent ranks that hold the same KV head, if there are more ranks than KV heads.
        ranks_a_kv_head = max(1, placement.group.size // spec.kv_heads)
        self.norms: dict[str, Norm | SharedNorm] = {}
        head_norm = None
        if (norm := spec.query_key_norm) is not None and spec.norm_over == "all":
            self.norms["query_norm"] = SharedNorm(norm, spec.query_size, placement, query)
            if self._has_own_kv:
                self.norms["key_norm"] = SharedNorm(norm, spec.kv_size, placement, key_value, ranks_a_kv_head)
        elif norm is not None:
            self.norms["query_norm"] = query_norm = Norm(norm, spec.head_size, placement)
            if self._has_own_kv:
                self.norms["key_norm"] = key_norm = Norm(norm, spec.head_size, placement)
                head_norm = QKNorm(query_norm.weight, key_norm.weight, norm.epsilon, spec.norm_after_rotation)
        if spec.value_norm is not None:
            self.norms["value_norm"] = Norm(spec.value_norm, spec.value_head_size, placement)
        if spec.output_norm is not None:
            self.norms["output_norm"] = SharedNorm(spec.output_norm, spec.output_size, placement, outputs)
        self._normalises_all = "query_norm" in self.norms and head_norm is None
        has_all = self._has_own_kv and not spec.values_are_keys
        is_even = spec.value_size is None and not spec.head_gate
        self._is_plain = has_all and spec.value_norm is None and not self._normalises_all and is_even
        self._value_size = spec.value_head_size
        self._heads = spec.heads
        self._own_heads = placement.share_of_heads(spec.heads, 1)
        num_heads = self._own_heads.stop - self._own_heads.start
        self.sinks = placement.device.empty((num_heads,), "float32") if spec.sinks else None
        slopes = None
        if spec.slopes is not None:
            slopes = placement.device.from_host(np.array(spec.slopes[self._own_heads], np.float32))
        self.relative_bias, self._relative = None, spec.relative_bias
        if self._relative is not None:
            self.relative_bias = placement.device.empty((num_heads, relative_bias_size(self._relative)), "float32")
        self.attention = PagedAttention(
            layer, spec, head_norm, sinks=self.sinks, slopes=slopes, relative_bias=self.relative_bias
        )
        self.output = RowParallelLinear(spec.output_size, hidden_size, placement, spec.output_bias)

    def load(self, reader: WeightReader, prefix: str) -> None:
        self.qkv.load(reader, *(f"{prefix}{name}" for name in self._names))
        self.output.load(reader, f"{prefix}output")
        for name, norm in self.norms.items():
            norm.load(reader, f"{prefix}{name}")
        if self.sinks is not None:
            reader.read(f"{prefix}sinks.weight", (self._heads,), self.sinks, self._own_heads)
        if self._relative is not None and self.relative_bias is not None:
            read_relative_bias(reader, self._relative, self._heads, self.relative_bias, self._own_heads)

    def packed(self) -> tuple[PackedLinear, ...]:
        """Every matrix, in order."""
        return (*self.qkv.packed, self.output.packed)

    def __call__(self, x: Tensor, context: ForwardContext) -> Tensor:  # [tokens, hidden_size]
        products = self.qkv(x)
        if self._clip is not None:
            products = self._kernels[clamp](products, self._clip)
        if self._is_plain:
            query, key, value, *_ = split(products.reshape(len(x), -1, self._head_size), self._num_heads)
            attended = self.attention(query, key, value, context)
        else:
            attended = self._attend(products, context)
        attended = attended.reshape(len(x), -1)
        if self._has_gate:
            self._gate(attended, split(products, self.qkv.sizes)[-1])
        return self.output(self._normalised("output_norm", attended))

    def _attend(self, products: Tensor, context: ForwardContext) -> Tensor:
        """Attention of a layer that normalises more than each head, or that lacks some projections."""
        parts = dict(zip(self._names, split(products, self.qkv.sizes), strict=True))
        query, heads = parts["query"], self._heads_of
        if not self._has_own_kv:
            return self.attention.shared(heads(self._normalised("query_norm", query)), context)
        key = parts["key"]
        value = self._normalised("value_norm", parts.get("value", key))
        if self._normalises_all:
            query, key = self._normalised("query_norm", query), self._normalised("key_norm", key)
        value = value.reshape(len(value), -1, self._value_size)
        return self.attention(heads(query), heads(key), value, context)

    def _normalised(self, name: str, part: Tensor) -> Tensor:
        norm = self.norms.get(name)
        return part if norm is None else norm(part)

    def _heads_of(self, part: Tensor) -> Tensor:
        return part.reshape(len(part), -1, self._head_size)


def _xielu(positive: float, negative: float) -> Xielu:
    """xIELU with its learned factors, which are stored as the inverse of softplus (arXiv 2411.13010)."""
    softplus = [max(number, 0) + log1p(exp(-abs(number))) for number in (positive, negative)]
    return Xielu(softplus[0], XIELU_BETA + softplus[1], XIELU_BETA, epsilon=-1e-6)


class FeedForward:
    """Up, activation, down; gated as in SwiGLU and GeGLU (arXiv 2002.05202)."""

    def __init__(self, spec: FeedForwardSpec, hidden_size: int, placement: WeightPlacement) -> None:
        self._kernels, self._group, self._device = placement.kernels, placement.group, placement.device
        self._cutoff, self._share = spec.cutoff, placement.share(spec.size)
        self._activation: str | Xielu | LimitedSwiglu = spec.activation
        self._gated = spec.gated
        self._learned: Tensor | None = None
        if spec.xielu is not None:
            self._activation = _xielu(*spec.xielu)
        elif spec.limit is not None:
            self._activation = LimitedSwiglu(spec.limit)
        elif spec.activation == "xielu":
            self._learned = placement.device.empty((2,), "float32")
        sizes = (spec.size, spec.size) if spec.gated else (spec.size,)
        self.norm = None
        if spec.inner_norm is not None:
            self.norm = SharedNorm(spec.inner_norm, spec.size, placement, self._share)
        self.up = ColumnParallelLinear(hidden_size, sizes, placement, spec.bias)
        self.down = RowParallelLinear(spec.size, hidden_size, placement, spec.bias or spec.output_bias)

    def load(self, reader: WeightReader, prefix: str) -> None:
        names = ("gate", "up") if self._gated else ("up",)
        self.up.load(reader, *(f"{prefix}{name}" for name in names))
        self.down.load(reader, f"{prefix}down")
        if self.norm is not None:
            self.norm.load(reader, f"{prefix}inner_norm")
        if self._learned is not None:
            for index, name in enumerate(("positive", "negative")):
                reader.read(f"{prefix}{name}.weight", (1,), self._learned[index : index + 1])
            self._activation = _xielu(*self._learned.tolist())

    def packed(self) -> Iterator[PackedLinear]:
        """Every matrix, in order."""
        yield from (*self.up.packed, self.down.packed)

    def __call__(self, x: Tensor) -> Tensor:  # [tokens, hidden_size]
        inner = self.up(x)
        if self._cutoff is not None:
            self._cut(inner[:, : self.up.sizes[0]], self._cutoff)
        inner = self._kernels[activation](inner, self._activation, self._gated)
        return self.down(inner if self.norm is None else self.norm(inner))

    def _cut(self, gate: Tensor, cutoff: float) -> None:
        """Cut off the gate in place, by the mean and the deviation over all ranks."""
        if self._group.size == 1:
            self._kernels[gaussian_top_k](gate, cutoff)
            return
        whole = self._device.concatenate(self._group.gather(gate), -1)
        gate[...] = self._kernels[gaussian_top_k](whole, cutoff)[:, self._share]


class DecoderLayer:
    """Attention and feed-forward around the residual stream.

    A layer takes and returns a pending output and the residual stream, so that each addition fuses with the next norm;
    one with a scale returns the scaled stream, and None. Where the stream is what the norms give, that is pending, as
    it has the factor, and the output takes the stream's place.
    """

    def __init__(self, model: ModelSpec, layer: int, placement: WeightPlacement) -> None:
        spec, size = model.layers[layer], model.hidden_size
        self._kernels = placement.kernels
        self._factor = model.residual_multiplier
        self._keeps_normed = spec.post_norm_factor is not None
        self._middle_factor = self._factor if spec.post_norm_factor is None else spec.post_norm_factor
        self._parallel = spec.parallel
        self.attention = None if spec.attention is None else _attention(spec.attention, size, layer, placement)
        self.recurrence = None if spec.recurrence is None else recurrence_of(spec.recurrence, size, layer, placement)
        self._mixers = [mixer for mixer in (self.attention, self.recurrence) if mixer is not None]
        self.feed_forward = None if spec.feed_forward is None else _feed_forward(spec.feed_forward, size, placement)
        self.norms = {name: Norm(norm, size, placement) for name, norm in spec.norms.items()}
        self.experts = None
        if (experts := spec.experts) is not None and experts.routing is not None:
            self.experts = Experts(experts, experts.routing, size, placement)
        self.streams = None if model.streams is None else LayerStreams(model.streams, size, placement)
        inputs = model.per_layer_input
        self.per_layer = None if inputs is None else PerLayerInput(inputs, size, layer, placement)
        self._scale = placement.device.empty((1,), "float32") if model.layer_scales else None
        self._scale_factor = 1.0

    def load(self, reader: WeightReader, prefix: str) -> None:
        for name, norm in self.norms.items():
            norm.load(reader, f"{prefix}{name}")
        if self.attention is not None:
            self.attention.load(reader, f"{prefix}attention.")
        if self.recurrence is not None:
            self.recurrence.load(reader, f"{prefix}recurrence.")
        for feed_forward in (self.feed_forward, self.experts):
            if feed_forward is not None:
                feed_forward.load(reader, f"{prefix}feed_forward.")
        if self.per_layer is not None:
            self.per_layer.load(reader, f"{prefix}per_layer.")
        if self.streams is not None:
            self.streams.load(reader, prefix)
        if self._scale is not None:
            reader.read(f"{prefix}scale.weight", (1,), self._scale)
            self._scale_factor = float(self._scale[0])

    def matrices(self) -> Iterator[PackedLinear]:
        """Every matrix, in order."""
        if self.attention is not None:
            yield from self.attention.packed()
        if self.recurrence is not None:
            yield from self.recurrence.packed()
        for part in (self.feed_forward, self.experts, self.per_layer, self.streams):
            if part is not None:
                yield from part.packed()

    def __call__(self, x: Tensor, residual: Tensor | None, context: ForwardContext) -> tuple[Tensor, Tensor | None]:
        if self.streams is not None:
            return self._alternate(self.streams, x, context), None
        if self._mixers:
            normed, residual = self._enter("attention_norm", x, residual, self._factor)
            first, *others = self._mixers
            x = first(normed, context)
            for mixer in others:
                x = self._kernels[add](x, mixer(normed, context))
            x = self._leave("attention_output_norm", x)
            if self._parallel and self.feed_forward is not None:
                own_norm = self.norms.get("feed_forward_norm")
                normed = normed if own_norm is None else own_norm(residual)
                return self._kernels[add](x, self.feed_forward(normed)), residual
            if self._keeps_normed:
                x, residual = normed, x
        if self.feed_forward is not None:
            normed, residual = self._enter("feed_forward_norm", x, residual, self._middle_factor)
            x = self.feed_forward(normed)
            if self.experts is not None:
                routed = self.experts(self.norms["experts_norm"](residual), self.norms["router_norm"](residual))
                x = self._kernels[add](self.norms["dense_norm"](x), self.norms["experts_output_norm"](routed))
            x = self._leave("feed_forward_output_norm", x)
            if self._keeps_normed:
                x, residual = normed, x
        assert residual is not None, "a layer that computes nothing"
        if self.per_layer is not None:
            assert context.per_layer_inputs is not None, "the model has per-layer inputs"
            residual = self._kernels[add](x, residual, self._factor)
            x = self.per_layer(residual, context.per_layer_inputs)
        if self._scale is None:
            return x, residual
        return self._kernels[scale_and_cap](self._kernels[add](x, residual, self._factor), self._scale_factor), None

    def _alternate(self, streams: LayerStreams, x: Tensor, context: ForwardContext) -> Tensor:
        """All residual streams after the layer, from those before it, [tokens, count * hidden_size] both."""
        assert self.attention is not None, "streams of a layer without attention"
        assert self.feed_forward is not None, "streams of a layer without a feed-forward layer"
        predicted, active = streams.predict(x)
        normed = self._leave("attention_norm", active)
        attended = self._leave("attention_output_norm", self.attention(normed, context))
        stream = self._kernels[add](streams.augment(normed), self._kernels[add](attended, active))
        stream = self._kernels[scale_and_cap](stream, 0.5**0.5)
        result = self.feed_forward(self._leave("feed_forward_norm", stream))
        result = self._kernels[add](self._leave("feed_forward_output_norm", result), stream)
        corrected, scaled = streams.correct(predicted, result)
        if self.per_layer is None:
            return corrected
        assert context.per_layer_inputs is not None, "the model has per-layer inputs"
        return streams.add_to_others(corrected, self.per_layer(scaled, context.per_layer_inputs))

    def _enter(self, name: str, x: Tensor, residual: Tensor | None, factor: float) -> tuple[Tensor, Tensor]:
        """Add `factor * x` to the residual stream; return the stream, normalised if there is a norm, and itself."""
        norm = self.norms.get(name)
        if residual is None:
            return (x if norm is None else norm(x)), x
        if norm is not None:
            return norm.add(x, residual, factor)
        total = self._kernels[add](x, residual, factor)
        return total, total

    def _leave(self, name: str, x: Tensor) -> Tensor:
        norm = self.norms.get(name)
        return x if norm is None else norm(x)


def _attention(
    spec: AttentionSpec, hidden_size: int, layer: int, placement: WeightPlacement
) -> Attention | LatentAttention:
    if spec.latent is None:
        return Attention(spec, hidden_size, layer, placement)
    return LatentAttention(spec, spec.latent, hidden_size, layer, placement)


def _feed_forward(spec: FeedForwardSpec, hidden_size: int, placement: WeightPlacement) -> FeedForward | Experts:
    if spec.routing is None:
        return FeedForward(spec, hidden_size, placement)
    return Experts(spec, spec.routing, hidden_size, placement)


class Decoder:
    """The whole model, or one rank's share of it: the layers of its stage, and on the first stage the embedding.

    The last stage has the final norm and the head. A stage sends the next one a pending output and the residual stream,
    as a layer does, so that the numbers equal those of one process.
    """

    def __init__(self, spec: ModelSpec, placement: WeightPlacement, stage: PipelineStage | None = None) -> None:
        rows = (spec.vocab_size, spec.hidden_size)
        self._spec = spec
        self._stage = stage = PipelineStage(range(len(spec.layers))) if stage is None else stage
        self._kernels = placement.kernels
        # Rounded to the embedding's dtype: Gemma was trained with this rounding.
        self._embedding_scale = float(numpy_dtype(placement.dtype).type(spec.embedding_scale))
        self.embedding = VocabularyParallelEmbedding(*rows, placement) if stage.is_first else None
        self.position_embedding, self.embedding_norm = None, None
        if stage.is_first and spec.positions:
            self.position_embedding = VocabularyParallelEmbedding(spec.num_positions, spec.hidden_size, placement)
        self.token_type = None
        if stage.is_first and spec.token_types and not spec.tells_texts_apart:
            self.token_type = placement.empty(spec.hidden_size)
        if stage.is_first and spec.embedding_norm is not None:
            self.embedding_norm = Norm(spec.embedding_norm, spec.hidden_size, placement)
        self.per_layer_inputs = None
        if stage.is_first and spec.per_layer_input is not None:
            self.per_layer_inputs = PerLayerInputs(spec, spec.per_layer_input, placement)
        self.streams_in, self.streams_out = None, None
        if spec.streams is not None:
            sizes = spec.streams, spec.hidden_size, placement
            self.streams_in = StreamProjections(*sizes) if stage.is_first else None
            self.streams_out = StreamProjections(*sizes) if stage.is_last else None
        self.layers = {layer: DecoderLayer(spec, layer, placement) for layer in stage.layers}
        assert spec.norm is not None, "the model is one of transformers"
        self.norm, self.head_rows, self.head, self.head_bias = None, None, None, None
        self.dense = DenseLayers(spec.dense if stage.is_last else ())
        if stage.is_last:
            self.norm = Norm(spec.norm, spec.hidden_size, placement)
            is_shared = spec.tie_word_embeddings and self.embedding is not None
            self.head_rows = self.embedding if is_shared else VocabularyParallelEmbedding(*rows, placement)
            assert self.head_rows is not None
            self.head = VocabularyParallelHead(self.head_rows, placement)
            self.head_bias = placement.empty(spec.vocab_size) if spec.head_bias else None

    @property
    def embedding_bytes(self) -> int:
        """Bytes of the packed embedding, and of the head if it is not tied."""
        per_layer = None if self.per_layer_inputs is None else self.per_layer_inputs.embedding
        return sum(rows.packed.nbytes for rows in {self.embedding, self.head_rows, per_layer} if rows is not None)

    def load(self, reader: WeightReader) -> None:
        """Fill every parameter."""
        if self.embedding is not None:
            self.embedding.load(reader, _EMBEDDING)
        if self.position_embedding is not None:
            self.position_embedding.load(position_reader(self._spec, reader), POSITIONS)
        if self.token_type is not None:
            reader.read(TYPES, (1, self._spec.hidden_size), self.token_type[None])
        if self.embedding_norm is not None:
            self.embedding_norm.load(reader, "embedding_norm")
        if self.per_layer_inputs is not None:
            self.per_layer_inputs.load(reader)
        for name, streams in (("streams_in", self.streams_in), ("streams_out", self.streams_out)):
            if streams is not None:
                streams.load(reader, name)
        for index, layer in self.layers.items():
            layer.load(reader, f"layers.{index}.")
        if self.norm is not None:
            self.norm.load(reader, "norm")
        if self.head_rows is not None and self.head_rows is not self.embedding:
            self.head_rows.load(reader, _EMBEDDING if self._spec.tie_word_embeddings else "head.weight")
        if self.head_bias is not None:
            reader.read("head.bias", (self._spec.vocab_size,), self.head_bias)
        self.dense.load(reader)

    def matrices(self) -> Iterator[PackedLinear]:
        """Every matrix but the embedding and the head, in order."""
        for part in (self.per_layer_inputs, self.streams_in, self.streams_out):
            if part is not None:
                yield from part.matrices()
        for layer in self.layers.values():
            yield from layer.matrices()

    def __call__(self, tokens: Tensor, context: ForwardContext) -> tuple[Tensor, ...]:
        """See `CausalModel`."""
        x: Tensor
        residual: Tensor | None = None
        if self.embedding is None:
            assert context.received is not None, "nothing came from the stage before"
            x, *others = split(context.received, self._spec.stage_widths)
            residual = None if self._spec.layer_scales or self._spec.streams is not None else others.pop(0)
            per_layer = others[0] if others else None
        else:
            x = self.embedding(tokens)
            if self._embedding_scale != 1:
                x = self._kernels[scale_and_cap](x, self._embedding_scale)
            if self.position_embedding is not None:
                x = self._kernels[add](self.position_embedding(context.positions), x)
            if self.token_type is not None:
                x = self._kernels[add_bias](x, self.token_type)
            if self.embedding_norm is not None:
                x = self.embedding_norm(x)
            per_layer = None if self.per_layer_inputs is None else self.per_layer_inputs(tokens, x)
            x = x if self.streams_in is None else self.streams_in.begin(x)
        context = context if per_layer is None else replace(context, per_layer_inputs=per_layer)
        for layer in self.layers.values():
            x, residual = layer(x, residual, context)
        if self.norm is None:
            return tuple(part for part in (x, residual, per_layer) if part is not None)
        x = x if self.streams_out is None else self.streams_out.end(x)
        return (self.norm(x) if residual is None else self.norm.add(x, residual, self._spec.residual_multiplier)[0],)

    def embedding_of(self, pooled: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """See `CausalModel`."""
        numbers = self.dense(pooled)
        return numbers if self._spec.is_classifier else unit_length(numbers)

    def logits(self, x: Tensor) -> Tensor | None:
        """Logits [rows, vocab_size] of hidden states [rows, hidden_size] on the sampling rank; None on the others."""
        if self.head is None:
            return None
        logits, spec = self.head(x), self._spec
        if logits is not None and self.head_bias is not None:
            logits = self._kernels[add_bias](logits, self.head_bias)
        if logits is None or (spec.logit_scale == 1 and spec.logit_soft_cap is None):
            return logits
        return self._kernels[scale_and_cap](logits, spec.logit_scale, spec.logit_soft_cap)
