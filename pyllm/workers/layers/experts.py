"""Mixture of experts: a router picks a few feed-forward layers for each token. Does not know how they are computed.

Each rank has a part of every expert, or some whole experts; the ranks' results are added up.
"""

from collections.abc import Iterator
from dataclasses import replace

from pyllm_kernels import ClampedSwiglu, ExpertMatrices, PackedLinear, Router
from pyllm_kernels.ops.experts import experts
from pyllm_kernels.tensors import Tensor

from pyllm.errors import ConfigError
from pyllm.families.spec import EXPERT_FEATURES, FeedForwardSpec, RoutingSpec
from pyllm.workers.layers.linear import ColumnParallelLinear
from pyllm.workers.layers.packing import MatrixPart, pack
from pyllm.workers.layers.weight_placement import WeightPlacement
from pyllm.workers.loaders.weights import WHOLE, WeightReader


class Experts:
    """The experts of one layer, in place of a feed-forward layer."""

    matrices: ExpertMatrices

    def __init__(
        self, spec: FeedForwardSpec, routing: RoutingSpec, hidden_size: int, placement: WeightPlacement
    ) -> None:
        self._placement = placement
        self._spec, self._hidden_size = spec, hidden_size
        if hidden_size % EXPERT_FEATURES:
            raise ConfigError(f"a model of experts needs a hidden size of {EXPERT_FEATURES}s, and it is {hidden_size}")
        every = slice(0, routing.experts)
        self._features = WHOLE if placement.by_expert else placement.share(spec.size)
        own = placement.share(routing.experts) if placement.by_expert else every
        self.router = ColumnParallelLinear(hidden_size, (routing.experts,), placement, spec.bias, shares=[every])
        self._router = Router(routing.experts, routing.active, routing.normalised, own.start, own.stop - own.start)
        gate = spec.clamped_gate
        self._activation = spec.activation if gate is None else ClampedSwiglu(gate.limit, gate.alpha)

    def load(self, reader: WeightReader, prefix: str) -> None:
        self.router.load(reader, f"{prefix}router")
        size, hidden = self._spec.size, self._hidden_size
        self.matrices = ExpertMatrices(
            self._pack(reader, prefix, MatrixPart("gate", (size, hidden), rows=self._features)),
            self._pack(reader, prefix, MatrixPart("up", (size, hidden), rows=self._features)),
            self._pack(reader, prefix, MatrixPart("down", (hidden, size), columns=self._features)),
        )
        if self._spec.bias:
            # If ranks have slices of experts, only one rank adds the bias of `down`.
            adds_down = self._placement.by_expert or self._placement.group.rank == 0
            self.matrices = replace(
                self.matrices,
                gate_bias=self._read_biases(reader, f"{prefix}experts.{{}}.gate.bias", size, self._features),
                up_bias=self._read_biases(reader, f"{prefix}experts.{{}}.up.bias", size, self._features),
                down_bias=self._read_biases(reader, f"{prefix}experts.{{}}.down.bias", hidden) if adds_down else None,
            )

    def packed(self) -> Iterator[PackedLinear]:
        """Every matrix, in order."""
        yield from self.router.packed
        yield from (self.matrices.gate, self.matrices.up, self.matrices.down)

    def __call__(self, x: Tensor) -> Tensor:  # [tokens, hidden_size]
        kernels = self._placement.kernels
        result = kernels[experts](x, self.router(x), self._router, self._activation, self.matrices)
        return self._placement.group.sum(result)

    def _read_biases(self, reader: WeightReader, name: str, size: int, rows: slice = WHOLE) -> Tensor:
        biases = self._placement.empty(self._router.count, len(range(size)[rows]))
        for expert, bias in enumerate(biases, self._router.first):
            reader.read(name.format(expert), (size,), bias, rows)
        return biases

    def _pack(self, reader: WeightReader, prefix: str, part: MatrixPart) -> PackedLinear:
        """Pack the same part of each of this rank's experts, stacked by rows."""
        own = range(self._router.first, self._router.first + self._router.count)
        names = (f"{prefix}experts.{expert}.{part.name}.weight" for expert in own)
        packed = pack(reader, self._placement, [part._replace(name=name) for name in names])
        if len(packed) > 1:
            kinds = ", ".join(sorted({matrix.format for matrix in packed}))
            raise ConfigError(f"the experts of {prefix}{part.name} are quantised in different formats: {kinds}")
        return packed[0]
