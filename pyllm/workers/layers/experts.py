"""Mixture of experts: a router picks a few feed-forward layers for each token. Does not know how they are computed.

Each rank has a part of every expert, or some whole experts, and a part of the expert that all tokens share; the ranks'
results are added up.
"""

from collections.abc import Iterator
from dataclasses import replace

from pyllm_kernels import ClampedSwiglu, ExpertGroups, ExpertMatrices, LimitedSwiglu, PackedLinear, Router
from pyllm_kernels.ops.activation import activation
from pyllm_kernels.ops.elementwise import add, sigmoid_gate, widen
from pyllm_kernels.ops.experts import ExpertActivation, experts
from pyllm_kernels.tensors import Tensor

from pyllm.errors import ConfigError
from pyllm.families.spec import EXPERT_FEATURES, FeedForwardSpec, RoutingSpec, SharedExpertSpec
from pyllm.workers.layers.linear import ColumnParallelLinear, RowParallelLinear
from pyllm.workers.layers.packing import pack
from pyllm.workers.layers.weight_placement import WeightPlacement
from pyllm.workers.loaders.weights import WHOLE, MatrixPart, WeightReader


class SharedExpert:
    """The expert of every token, on each rank a part of its features."""

    def __init__(
        self, spec: FeedForwardSpec, shared: SharedExpertSpec, hidden_size: int, placement: WeightPlacement
    ) -> None:
        self._kernels = placement.kernels
        self._activation = spec.activation if shared.limit is None else LimitedSwiglu(shared.limit)
        self._gated = spec.gated
        sizes = (shared.size, shared.size) if spec.gated else (shared.size,)
        self._up = ColumnParallelLinear(hidden_size, sizes, placement)
        self._down = RowParallelLinear(shared.size, hidden_size, placement)
        self.factor = shared.factor
        self._gate = None
        if shared.gated:
            self._gate = ColumnParallelLinear(hidden_size, (1,), placement, shares=[slice(0, 1)])

    def load(self, reader: WeightReader, prefix: str) -> None:
        names = ("gate", "up") if self._gated else ("up",)
        self._up.load(reader, *(f"{prefix}shared.{name}" for name in names))
        self._down.load(reader, f"{prefix}shared.down")
        if self._gate is not None:
            self._gate.load(reader, f"{prefix}shared_gate")

    def packed(self) -> Iterator[PackedLinear]:
        """Every matrix, in order."""
        yield from (*self._up.packed, self._down.packed)
        if self._gate is not None:
            yield from self._gate.packed

    def partial(self, x: Tensor) -> Tensor:
        """This rank's part of the result, to be added up over the ranks; x [tokens, hidden_size]."""
        inner = self._kernels[activation](self._up(x), self._activation, self._gated)
        output = self._down.partial(inner)
        return output if self._gate is None else self._kernels[sigmoid_gate](output, self._gate(x))


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
        self._widens = routing.float32 and placement.dtype != "float32"
        of_router = replace(placement, dtype="float32", quantization="none") if routing.float32 else placement
        self.router = ColumnParallelLinear(hidden_size, (routing.experts,), of_router, spec.bias, shares=[every])
        groups = routing.groups
        self._router = Router(
            routing.experts,
            routing.active,
            routing.normalised,
            own.start,
            own.stop - own.start,
            scores=routing.scores,
            tolerance=routing.tolerance,
            factor=routing.factor,
            weighs_inputs=routing.weighs_inputs,
            correction=placement.device.empty((routing.experts,), "float32") if routing.correction else None,
            groups=None if groups is None else ExpertGroups(groups.count, groups.active, groups.best),
            expert_factors=placement.device.empty((routing.experts,), "float32") if routing.expert_factors else None,
        )
        shared = routing.shared
        self._shared = None if shared is None else SharedExpert(spec, shared, hidden_size, placement)
        self._activation: ExpertActivation = spec.activation
        if (gate := spec.clamped_gate) is not None:
            self._activation = ClampedSwiglu(gate.limit, gate.alpha)
        elif spec.limit is not None:
            self._activation = LimitedSwiglu(spec.limit)

    def load(self, reader: WeightReader, prefix: str) -> None:
        self.router.load(reader, f"{prefix}router")
        if (correction := self._router.correction) is not None:
            reader.read(f"{prefix}correction.bias", (self._router.num_experts,), correction)
        if (factors := self._router.expert_factors) is not None:
            reader.read(f"{prefix}expert_factors.weight", (self._router.num_experts,), factors)
        if self._shared is not None:
            self._shared.load(reader, prefix)
        size, hidden = self._spec.size, self._hidden_size
        self.matrices = ExpertMatrices(
            self._pack(reader, prefix, MatrixPart("gate", (size, hidden), rows=self._features))
            if self._spec.gated
            else None,
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
        if self.matrices.gate is not None:
            yield self.matrices.gate
        yield from (self.matrices.up, self.matrices.down)
        if self._shared is not None:
            yield from self._shared.packed()

    def __call__(self, x: Tensor, routed: Tensor | None = None) -> Tensor:
        """The experts' outputs for x [tokens, hidden_size]; the router reads `routed`, if it is given, instead."""
        kernels = self._placement.kernels
        read = x if routed is None else routed
        logits = self.router(kernels[widen](read) if self._widens else read)
        result = kernels[experts](x, logits, self._router, self._activation, self.matrices)
        if self._shared is not None:
            result = kernels[add](self._shared.partial(x), result, self._shared.factor)
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
