"""Lightning attention (arXiv 2401.04658): `LightningSpec` as a layer, over this rank's heads."""

import numpy as np
from pyllm_kernels import PackedLinear
from pyllm_kernels.ops.activation import activation
from pyllm_kernels.ops.elementwise import scale_and_cap
from pyllm_kernels.ops.rope_and_kv_write import rope
from pyllm_kernels.ops.state_space import state_space
from pyllm_kernels.tensors import Tensor, split

from pyllm.families.spec import LightningSpec
from pyllm.workers.layers.forward_context import ForwardContext
from pyllm.workers.layers.gated_norm import GatedNorm
from pyllm.workers.layers.linear import ColumnParallelLinear, RowParallelLinear
from pyllm.workers.layers.norm import Norm
from pyllm.workers.layers.weight_placement import WeightPlacement
from pyllm.workers.loaders.weights import WeightReader


class LightningAttention:
    """Linear attention with a constant decay: the recurrence of Mamba-2 with steps of 1, and nothing skipped."""

    def __init__(self, spec: LightningSpec, hidden_size: int, layer: int, placement: WeightPlacement) -> None:
        self._layer, self._kernels, self._spec = layer, placement.kernels, spec
        self.inputs = ColumnParallelLinear(hidden_size, tuple(spec.inputs.values()), placement)
        self.output = RowParallelLinear(spec.output_size, hidden_size, placement)
        own, size = placement.share(spec.heads), self.inputs.sizes[0]
        self._num_heads, self._sizes = own.stop - own.start, [3 * size, size]
        self.norms = {}
        if spec.query_key_norm is not None:
            self.norms = {
                name: Norm(spec.query_key_norm, spec.head_size, placement) for name in ("query_norm", "key_norm")
            }
        self.norm = GatedNorm(spec.output_size, spec.norm_groups, spec.epsilon, placement, function="sigmoid")
        self._decay_log = placement.device.from_host(np.log(np.array(spec.slopes[own], np.float32)))
        self._zeros = placement.device.zeros((self._num_heads,), "float32")

    def load(self, reader: WeightReader, prefix: str) -> None:
        self.inputs.load(reader, *(f"{prefix}{name}" for name in self._spec.inputs))
        self.output.load(reader, f"{prefix}output")
        self.norm.load(reader, f"{prefix}norm")
        for name, norm in self.norms.items():
            norm.load(reader, f"{prefix}{name}")

    def packed(self) -> tuple[PackedLinear, ...]:
        """Every matrix, in order."""
        return (*self.inputs.packed, self.output.packed)

    def __call__(self, x: Tensor, context: ForwardContext) -> Tensor:  # [tokens, hidden_size]
        kernels, (rows, (memory,)) = self._kernels, context.states_of(self._layer)
        products, gate = split(self.inputs(x), self._sizes)
        if self._spec.activated:
            products = kernels[activation](products, "silu", False)
        query, key, value = split(products, [self._sizes[1]] * 3)
        query, key = self._rotated(query, key, context)
        # The limits make every step 1, so it does not matter which numbers are given.
        steps = value[:, : self._num_heads]
        zeros, limits = self._zeros, (1.0, 1.0)
        values = kernels[state_space](value, key, query, steps, zeros, self._decay_log, zeros, rows, memory, limits)
        return self.output(self.norm(values, gate))

    def _rotated(self, query: Tensor, key: Tensor, context: ForwardContext) -> tuple[Tensor, Tensor]:
        """Query and key, normalised, rotated and scaled."""
        if self.norms:
            query, key = self.norms["query_norm"](query), self.norms["key_norm"](key)
        if self._spec.rope is not None:
            table = context.position_tables.rotation(self._spec.rope)
            for part in (query, key):
                self._kernels[rope](part.reshape(len(part), self._num_heads, -1), context.positions, table)
        if self._spec.scale != 1:
            query = self._kernels[scale_and_cap](query, self._spec.scale)
        return query, key
