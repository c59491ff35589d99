"""Multi-head latent attention (arXiv 2405.04434): the cache keeps a latent vector of a token, from which heads follow.

Prompts and decode steps have one arithmetic: the keys' projection from the latent is applied to the queries instead, so
that all heads attend to the latents themselves. A vector, of the cache or of a head's query, begins with its rotary
part.
"""

from dataclasses import replace
from functools import partial

from pyllm_kernels import PackedLinear
from pyllm_kernels.ops.elementwise import sigmoid_gate, widen
from pyllm_kernels.ops.head_products import head_products
from pyllm_kernels.ops.norm import rms_norm
from pyllm_kernels.ops.packed_linear import pack_linear
from pyllm_kernels.ops.rope_and_kv_write import rope_and_kv_write
from pyllm_kernels.ops.token_selection import TokenSelection, select_tokens
from pyllm_kernels.tensors import Tensor, copied

from pyllm.families.spec import AttentionSpec, LatentSpec
from pyllm.workers.layers.attention import PagedAttention
from pyllm.workers.layers.forward_context import ForwardContext
from pyllm.workers.layers.linear import ColumnParallelLinear, RowParallelLinear, whole_linear
from pyllm.workers.layers.norm import Norm
from pyllm.workers.layers.weight_placement import WeightPlacement
from pyllm.workers.loaders.weights import WeightReader


class LatentAttention:
    """Latent attention with its projections: heads are split over the ranks, and each has the whole latents."""

    def __init__(
        self, spec: AttentionSpec, latent: LatentSpec, hidden_size: int, layer: int, placement: WeightPlacement
    ) -> None:
        self._spec, self._kernels = latent, placement.kernels
        self._num_heads = spec.heads // placement.group.size
        self.query_down, self.query_norm, query_inputs = None, None, hidden_size
        if (rank := latent.query_rank) is not None:
            self.query_down = ColumnParallelLinear(hidden_size, (rank,), placement, spec.bias, [slice(0, rank)])
            self.query_norm, query_inputs = Norm(latent.norm, rank, placement), rank
        self.query = ColumnParallelLinear(query_inputs, (spec.heads * latent.query_size,), placement)
        size = latent.size
        self.latent = ColumnParallelLinear(hidden_size, (size,), placement, spec.bias, [slice(0, size)])
        self.latent_norm = Norm(latent.norm, latent.rank, placement)
        self.key = HeadMatrices(latent.key_shape, spec.heads, placement, is_transposed=not latent.absorbed)
        self.value = HeadMatrices((latent.value_size, latent.rank), spec.heads, placement)
        self.gate = None
        if spec.head_gate:
            self.gate = ColumnParallelLinear(
                hidden_size, (spec.heads,), placement, shares=[placement.share_of_heads(spec.heads, 1)]
            )
        self.attention = PagedAttention(layer, spec)
        self._selects, self.index = None, None
        if (index := latent.index) is not None:
            self._selects = layer if index.source is None else index.source
        if index is not None and index.source is None:
            self.index = Index(spec, latent, hidden_size, layer, placement)
        self.output = RowParallelLinear(spec.heads * latent.value_size, hidden_size, placement, spec.output_bias)

    def load(self, reader: WeightReader, prefix: str) -> None:
        """Fill every parameter."""
        if self.query_down is not None and self.query_norm is not None:
            self.query_down.load(reader, f"{prefix}query_down")
            self.query_norm.load(reader, f"{prefix}query_norm")
        self.query.load(reader, f"{prefix}query")
        self.latent.load(reader, f"{prefix}latent")
        self.latent_norm.load(reader, f"{prefix}latent_norm")
        self.key.load(reader, f"{prefix}key")
        self.value.load(reader, f"{prefix}value")
        if self.gate is not None:
            self.gate.load(reader, f"{prefix}gate")
        self.output.load(reader, f"{prefix}output")
        if self.index is not None:
            self.index.load(reader, prefix)

    def packed(self) -> tuple[PackedLinear, ...]:
        """Every matrix, in order, and those of the index last."""
        down = () if self.query_down is None else self.query_down.packed
        gate = () if self.gate is None else self.gate.packed
        heads = self.key.packed, self.value.packed
        index = () if self.index is None else self.index.packed()
        return (*down, *self.query.packed, *self.latent.packed, *heads, *gate, self.output.packed, *index)

    def __call__(self, x: Tensor, context: ForwardContext) -> Tensor:  # [tokens, hidden_size]
        kernels, latent = self._kernels, self.latent(x)
        part = latent[:, self._spec.rope_size :]
        kernels[rms_norm](part, self.latent_norm.weight, self._spec.norm.epsilon, part)
        cached = latent.reshape(len(x), 1, -1)
        gate = None if self.gate is None else self.gate(x)
        inputs = x
        if self.query_down is not None and self.query_norm is not None:
            inputs = self.query_norm(self.query_down(x))
        query = self.query(inputs).reshape(len(x), self._num_heads, -1)
        absorbed = kernels[head_products](query, self.key.packed, True)  # [tokens, heads, rope_size + rank]
        select = None if self._selects is None else partial(self._select, x, inputs, context)
        attended = self.attention(absorbed, cached, cached, context, select)
        values = kernels[head_products](attended, self.value.packed, False).reshape(len(x), -1)
        return self.output(values if gate is None else kernels[sigmoid_gate](values, gate))

    def _select(self, x: Tensor, inputs: Tensor, context: ForwardContext) -> TokenSelection:
        if self.index is not None:
            self.index(x, inputs, context)
        assert self._selects is not None, "a layer without a choice of tokens"
        return context.selections[self._selects]


class Index:
    """The choice of the tokens that a token attends to, by an index, which each rank has whole (arXiv 2512.02556)."""

    def __init__(
        self,
        spec: AttentionSpec,
        latent: LatentSpec,
        hidden_size: int,
        layer: int,
        placement: WeightPlacement,
    ) -> None:
        index = latent.index
        assert index is not None, "a layer without an index"
        self._spec, self._kernels, self._layer, self._rope = index, placement.kernels, layer, spec.rope
        self._start = latent.size  # of the key in a cached vector
        self.query = whole_linear(latent.query_rank or hidden_size, index.heads * index.size, placement)
        self.key = whole_linear(hidden_size, index.size, placement)
        # In float32 whatever the dtype of the model, as in transformers.
        self._widens, wide = placement.dtype != "float32", replace(placement, dtype="float32", quantization="none")
        self.weights = whole_linear(hidden_size, index.heads, wide)
        self.norm = Norm(index.norm, index.size, placement)

    def load(self, reader: WeightReader, prefix: str) -> None:
        """Fill every parameter."""
        self.query.load(reader, f"{prefix}index_query")
        self.key.load(reader, f"{prefix}index_key")
        self.weights.load(reader, f"{prefix}index_weights")
        self.norm.load(reader, f"{prefix}index_norm")

    def packed(self) -> tuple[PackedLinear, ...]:
        """Every matrix, in order."""
        return (*self.query.packed, *self.key.packed, *self.weights.packed)

    def __call__(self, x: Tensor, inputs: Tensor, context: ForwardContext) -> None:
        """Store the keys of x [tokens, hidden_size], and choose; queries follow from `inputs` [tokens, features]."""
        kernels, (group, keys, _) = self._kernels, context.kv_cache.layers[self._layer]
        query = self.query(inputs).reshape(len(x), self._spec.heads, -1)
        key, cached = self.norm(self.key(x)).reshape(len(x), 1, -1), keys[..., self._start :]
        rotation, slots = context.position_tables.rotation(self._rope), context.slot_mapping[group]
        kernels[rope_and_kv_write](query, key, key, context.positions, rotation, slots, cached, cached)
        weights, metadata = self.weights(kernels[widen](x) if self._widens else x), context.attention[group]
        context.selections.clear()  # their memory is free for this one
        context.selections[self._layer] = kernels[select_tokens](query, weights, cached, metadata, self._spec.count)


class HeadMatrices:
    """A matrix of floats for each of this rank's heads; `shape` is that of a head's in the file.

    `is_transposed`: the product takes the outputs of a file's matrix as its inputs.
    """

    packed: PackedLinear

    def __init__(
        self, shape: tuple[int, int], heads: int, placement: WeightPlacement, is_transposed: bool = False
    ) -> None:
        self._placement = placement
        self._shape, self._heads, self._is_transposed = shape, heads, is_transposed

    def load(self, reader: WeightReader, name: str) -> None:
        """Read the matrices; quantised ones become floats."""
        (rows, columns), placement = self._shape, self._placement
        share = placement.share_of_heads(self._heads, rows)
        weights = placement.empty(share.stop - share.start, columns)
        reader.read(f"{name}.weight", (self._heads * rows, columns), weights, share)
        if self._is_transposed:
            weights = copied(weights.reshape(-1, rows, columns).swapaxes(1, 2)).reshape(-1, rows)
        self.packed = placement.kernels[pack_linear](weights)
