"""Layers that keep a state of all tokens before: `RecurrenceSpec` as a layer, over this rank's heads or features.

Each projects its input, convolves some of the projections along the sequence, and projects the result back.
"""

from pyllm_kernels import PackedLinear
from pyllm_kernels.ops.causal_convolution import causal_convolution, gated_convolution
from pyllm_kernels.ops.elementwise import silu_gate
from pyllm_kernels.ops.gated_delta_rule import gated_delta_rule
from pyllm_kernels.ops.gated_norm import gated_norm
from pyllm_kernels.ops.state_space import selective_scan, state_space
from pyllm_kernels.tensors import Tensor, copied, split

from pyllm.families.spec import (
    GatedDeltaSpec,
    RecurrenceSpec,
    SelectiveScanSpec,
    ShortConvolutionSpec,
    StateSpaceSpec,
)
from pyllm.workers.layers.forward_context import ForwardContext
from pyllm.workers.layers.linear import ColumnParallelLinear, RowParallelLinear
from pyllm.workers.layers.norm import Norm
from pyllm.workers.layers.weight_placement import WeightPlacement
from pyllm.workers.loaders.weights import WeightReader


class Projections:
    """The linear layers around a recurrence, and the weights of its convolution.

    The convolved projections come first in the result of `inputs`, in the order of their features in the file.
    """

    def __init__(self, spec: RecurrenceSpec, hidden_size: int, placement: WeightPlacement) -> None:
        has_bias = not isinstance(spec, GatedDeltaSpec) and spec.bias
        self._names = tuple(spec.inputs)
        shares = {name: placement.share(size) for name, size in spec.inputs.items()}
        if isinstance(spec, StateSpaceSpec):
            group = placement.share_of_heads(spec.groups, spec.state_size)
            shares |= {"input": group, "readout": group}
        self._shares = tuple(shares.values())
        self.inputs = ColumnParallelLinear(
            hidden_size, tuple(spec.inputs.values()), placement, has_bias, tuple(shares.values())
        )
        self.output = RowParallelLinear(spec.output_size, hidden_size, placement, has_bias)
        self._spec = spec
        channels = sum(self.inputs.sizes[: len(spec.convolved)])
        self.weight = placement.device.empty((channels, spec.width), "float32")
        self.bias = placement.device.empty((channels,), "float32") if spec.has_convolution_bias else None

    def load(self, reader: WeightReader, prefix: str) -> None:
        """Fill the matrices, and the convolution's weights of this rank's features."""
        self.inputs.load(reader, *(f"{prefix}{name}" for name in self._names))
        self.output.load(reader, f"{prefix}output")
        spec, total = self._spec, sum(self._spec.convolved)
        before, here = 0, 0
        for size, share in zip(spec.convolved, self._shares, strict=False):
            rows = slice(before + share.start, before + share.stop)
            part = slice(here, here + share.stop - share.start)
            reader.read(f"{prefix}convolution.weight", (total, spec.width), self.weight[part], rows)
            if self.bias is not None:
                reader.read(f"{prefix}convolution.bias", (total,), self.bias[part], rows)
            before, here = before + size, part.stop

    def packed(self) -> tuple[PackedLinear, ...]:
        """Every matrix, in order."""
        return (*self.inputs.packed, self.output.packed)


class ShortConvolution:
    """LFM2's short convolution (arXiv 2511.23404)."""

    def __init__(self, spec: ShortConvolutionSpec, hidden_size: int, layer: int, placement: WeightPlacement) -> None:
        self._layer, self._kernels = layer, placement.kernels
        self.projections = Projections(spec, hidden_size, placement)

    def load(self, reader: WeightReader, prefix: str) -> None:
        self.projections.load(reader, prefix)

    def packed(self) -> tuple[PackedLinear, ...]:
        return self.projections.packed()

    def __call__(self, x: Tensor, context: ForwardContext) -> Tensor:  # [tokens, hidden_size]
        rows, (state,) = context.states_of(self._layer)
        convolution = self.projections
        gated = self._kernels[gated_convolution](
            convolution.inputs(x), convolution.weight, convolution.bias, rows, state
        )
        return convolution.output(gated)


class GatedDelta:
    """The gated delta rule (arXiv 2412.06464) as in Qwen3-Next."""

    def __init__(self, spec: GatedDeltaSpec, hidden_size: int, layer: int, placement: WeightPlacement) -> None:
        self._layer, self._kernels, self._spec = layer, placement.kernels, spec
        self.projections = Projections(spec, hidden_size, placement)
        self._heads = placement.share(spec.value_heads)
        self._key_heads = spec.key_heads // placement.group.size
        query, key, value, *rest = self.projections.inputs.sizes
        self._sizes = [query + key + value, *rest]
        empty, num_heads = placement.device.empty, self._heads.stop - self._heads.start
        self.decay_scale, self.decay_bias = empty((num_heads,), "float32"), empty((num_heads,), "float32")
        self.norm = empty((spec.value_size,), "float32")

    def load(self, reader: WeightReader, prefix: str) -> None:
        self.projections.load(reader, prefix)
        for name, out in (("decay_scale", self.decay_scale), ("decay_bias", self.decay_bias)):
            reader.read(f"{prefix}{name}.weight", (self._spec.value_heads,), out, self._heads)
        reader.read(f"{prefix}norm.weight", (self._spec.value_size,), self.norm)

    def packed(self) -> tuple[PackedLinear, ...]:
        return self.projections.packed()

    def __call__(self, x: Tensor, context: ForwardContext) -> Tensor:  # [tokens, hidden_size]
        rows, (tail, memory) = context.states_of(self._layer)
        kernels, layer, spec = self._kernels, self.projections, self._spec
        convolved, gate, beta, decay = split(layer.inputs(x), self._sizes)
        convolved = kernels[causal_convolution](convolved, layer.weight, layer.bias, rows, tail)
        values = kernels[gated_delta_rule](
            convolved, decay, beta, self.decay_scale, self.decay_bias, rows, memory, self._key_heads, spec.is_tiled
        )
        return layer.output(kernels[gated_norm](values, gate, self.norm, spec.epsilon, spec.value_size, False))


class StateSpace:
    """Mamba-2's layer (arXiv 2405.21060)."""

    def __init__(self, spec: StateSpaceSpec, hidden_size: int, layer: int, placement: WeightPlacement) -> None:
        self._layer, self._kernels, self._spec = layer, placement.kernels, spec
        self._group, self._device = placement.group, placement.device
        # A norm over the features of several ranks needs all of them.
        self._is_norm_cut = spec.norm_groups % placement.group.size != 0
        self.projections = Projections(spec, hidden_size, placement)
        self._heads, self._features = placement.share(spec.heads), placement.share(spec.output_size)
        value, read, written, gate, step = self.projections.inputs.sizes
        self._sizes, self._convolved = [value + read + written, gate, step], [value, read, written]
        empty = placement.device.empty
        self.decay_scale, self.step_bias, self.skip = (empty((step,), "float32") for _ in range(3))
        self.norm = empty((spec.output_size if self._is_norm_cut else value,), "float32")

    def load(self, reader: WeightReader, prefix: str) -> None:
        self.projections.load(reader, prefix)
        for name, out in (("decay_scale", self.decay_scale), ("step_bias", self.step_bias), ("skip", self.skip)):
            reader.read(f"{prefix}{name}.weight", (self._spec.heads,), out, self._heads)
        if self._spec.norm_groups:
            own = slice(None) if self._is_norm_cut else self._features
            reader.read(f"{prefix}norm.weight", (self._spec.output_size,), self.norm, own)

    def packed(self) -> tuple[PackedLinear, ...]:
        return self.projections.packed()

    def __call__(self, x: Tensor, context: ForwardContext) -> Tensor:  # [tokens, hidden_size]
        rows, (tail, memory) = context.states_of(self._layer)
        kernels, layer, spec = self._kernels, self.projections, self._spec
        convolved, gate, step = split(layer.inputs(x), self._sizes)
        convolved = kernels[causal_convolution](convolved, layer.weight, layer.bias, rows, tail)
        value, read, written = split(convolved, self._convolved)
        values = kernels[state_space](
            value,
            read,
            written,
            step,
            self.step_bias,
            self.decay_scale,
            self.skip,
            rows,
            memory,
            spec.step_limits,
        )
        return layer.output(self._normalise(values, gate))

    def _normalise(self, values: Tensor, gate: Tensor) -> Tensor:
        spec = self._spec
        if not spec.norm_groups:
            return self._kernels[silu_gate](values, gate)
        group_size, epsilon = spec.output_size // spec.norm_groups, spec.epsilon
        normalise = self._kernels[gated_norm]
        if not self._is_norm_cut:
            return normalise(values, gate, self.norm, epsilon, group_size, spec.gate_first)
        values, gate = (self._device.concatenate(self._group.gather(part), -1) for part in (values, copied(gate)))
        return copied(normalise(values, gate, self.norm, epsilon, group_size, spec.gate_first)[:, self._features])


class SelectiveScan:
    """Mamba's layer (arXiv 2312.00752), also with Jamba's norms (arXiv 2403.19887)."""

    def __init__(self, spec: SelectiveScanSpec, hidden_size: int, layer: int, placement: WeightPlacement) -> None:
        self._layer, self._kernels, self._spec = layer, placement.kernels, spec
        self._features = placement.share(spec.size)
        self.projections = Projections(spec, hidden_size, placement)
        self._sizes = self.projections.inputs.sizes
        self.rate = RowParallelLinear(spec.size, spec.step_rank, placement)
        self.selection = RowParallelLinear(spec.size, 2 * spec.state_size, placement)
        self.step = ColumnParallelLinear(spec.step_rank, (spec.size,), placement)
        self.norms = {name: Norm(norm, size, placement) for name, (norm, size) in spec.norms.items()}
        empty, size = placement.device.empty, self._sizes[0]
        self.decay_scale = empty((size, spec.state_size), "float32")
        self.step_bias, self.skip = empty((size,), "float32"), empty((size,), "float32")

    def load(self, reader: WeightReader, prefix: str) -> None:
        self.projections.load(reader, prefix)
        self.rate.load(reader, f"{prefix}rate")
        self.selection.load(reader, f"{prefix}selection")
        self.step.load(reader, f"{prefix}step")
        for name, norm in self.norms.items():
            norm.load(reader, f"{prefix}{name}")
        size, rows = self._spec.size, self._features
        reader.read(f"{prefix}decay_scale.weight", (size, self._spec.state_size), self.decay_scale, rows)
        reader.read(f"{prefix}step.bias", (size,), self.step_bias, rows)
        reader.read(f"{prefix}skip.weight", (size,), self.skip, rows)

    def packed(self) -> tuple[PackedLinear, ...]:
        return (*self.projections.packed(), self.rate.packed, self.selection.packed, *self.step.packed)

    def __call__(self, x: Tensor, context: ForwardContext) -> Tensor:  # [tokens, hidden_size]
        rows, (tail, memory) = context.states_of(self._layer)
        kernels, layer = self._kernels, self.projections
        value, gate = split(layer.inputs(x), self._sizes)
        value = kernels[causal_convolution](value, layer.weight, layer.bias, rows, tail)
        rate, (read, written) = self.rate(value), split(self.selection(value), [self._spec.state_size] * 2)
        if self.norms:
            parts = zip(self.norms.values(), (rate, read, written), strict=True)
            rate, read, written = (norm(part) for norm, part in parts)
        values = kernels[selective_scan](
            value, self.step(rate), read, written, self.step_bias, self.decay_scale, self.skip, rows, memory
        )
        return layer.output(kernels[silu_gate](values, gate))


Recurrence = ShortConvolution | GatedDelta | StateSpace | SelectiveScan


def recurrence_of(spec: RecurrenceSpec, hidden_size: int, layer: int, placement: WeightPlacement) -> Recurrence:
    """The layer that a spec describes."""
    match spec:
        case ShortConvolutionSpec():
            return ShortConvolution(spec, hidden_size, layer, placement)
        case GatedDeltaSpec():
            return GatedDelta(spec, hidden_size, layer, placement)
        case StateSpaceSpec():
            return StateSpace(spec, hidden_size, layer, placement)
        case SelectiveScanSpec():
            return SelectiveScan(spec, hidden_size, layer, placement)
