"""Multi-head latent attention (arXiv 2405.04434): the cache keeps a latent vector of a token, from which heads follow.

Prompts and decode steps have one arithmetic: the keys' projection from the latent is applied to the queries instead, so
that all heads attend to the latents themselves. A vector, of the cache or of a head's query, begins with its rotary
part.
"""

from pyllm_kernels import PackedLinear
from pyllm_kernels.ops.elementwise import sigmoid_gate
from pyllm_kernels.ops.head_products import head_products
from pyllm_kernels.ops.norm import rms_norm
from pyllm_kernels.ops.packed_linear import pack_linear
from pyllm_kernels.tensors import Tensor, copied

from pyllm.families.spec import AttentionSpec, LatentSpec
from pyllm.workers.layers.attention import PagedAttention
from pyllm.workers.layers.forward_context import ForwardContext
from pyllm.workers.layers.linear import ColumnParallelLinear, RowParallelLinear
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
        size = spec.head_size
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

    def packed(self) -> tuple[PackedLinear, ...]:
        """Every matrix, in order."""
        down = () if self.query_down is None else self.query_down.packed
        gate = () if self.gate is None else self.gate.packed
        heads = self.key.packed, self.value.packed
        return (*down, *self.query.packed, *self.latent.packed, *heads, *gate, self.output.packed)

    def __call__(self, x: Tensor, context: ForwardContext) -> Tensor:  # [tokens, hidden_size]
        kernels, latent = self._kernels, self.latent(x)
        part = latent[:, self._spec.rope_size :]
        kernels[rms_norm](part, self.latent_norm.weight, self._spec.norm.epsilon, part)
        cached = latent.reshape(len(x), 1, -1)
        gate = None if self.gate is None else self.gate(x)
        if self.query_down is not None and self.query_norm is not None:
            x = self.query_norm(self.query_down(x))
        query = self.query(x).reshape(len(x), self._num_heads, -1)
        absorbed = kernels[head_products](query, self.key.packed, True)  # [tokens, heads, rope_size + rank]
        attended = self.attention(absorbed, cached, cached, context)
        values = kernels[head_products](attended, self.value.packed, False).reshape(len(x), -1)
        return self.output(values if gate is None else kernels[sigmoid_gate](values, gate))


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
