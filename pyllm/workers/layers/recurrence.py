"""Layers that keep a state of all tokens before: `RecurrenceSpec` as a layer, over this rank's heads or features.

Each projects its input, convolves some of the projections along the sequence, and projects the result back; lightning
attention, which convolves nothing, is in `lightning_attention.py`.
"""

from functools import partial

from pyllm_kernels import PackedLinear
from pyllm_kernels.ops.causal_convolution import causal_convolution, gated_convolution
from pyllm_kernels.ops.elementwise import silu_gate
from pyllm_kernels.ops.gated_delta_rule import gated_delta_rule
from pyllm_kernels.ops.gated_norm import gated_norm
from pyllm_kernels.ops.state_space import selective_scan, state_space
from pyllm_kernels.tensors import Tensor, split

from pyllm.families.spec import (
    ConvolvedSpec,
    GatedDeltaSpec,
    LightningSpec,
    RecurrenceSpec,
    SelectiveScanSpec,
    ShortConvolutionSpec,
    StateSpaceSpec,
    convolution_tensors,
)
from pyllm.workers.layers.forward_context import ForwardContext
from pyllm.workers.layers.gated_norm import GatedNorm
from pyllm.workers.layers.lightning_attention import LightningAttention
from pyllm.workers.layers.linear import ColumnParallelLinear, RowParallelLinear, whole_linear
from pyllm.workers.layers.norm import Norm
from pyllm.workers.layers.weight_placement import WeightPlacement
from pyllm.workers.loaders.weights import WeightReader


class Projections:
    """The linear layers around a recurrence, and the weights of its convolution.

    The convolved projections come first in the result of `inputs`, in the order of their features in the file.
    """

    def __init__(self, spec: ConvolvedSpec, hidden_size: int, placement: WeightPlacement) -> None:
        has_bias = not isinstance(spec, GatedDeltaSpec) and spec.bias
        self._names = tuple(spec.inputs)
        shares = {name: placement.share(size) for name, size in spec.inputs.items()}
        if isinstance(spec, StateSpaceSpec):
            group = placement.share_of_heads(spec.groups, spec.state_size)
            shares |= {"input": group, "readout": group}
        self._shares = tuple(shares.values())
        self.low_rank: dict[str, LowRankLinear] = {}
        if isinstance(spec, GatedDeltaSpec) and spec.rank is not None:
            for name, size in spec.low_rank.items():
                self.low_rank[name] = LowRankLinear(hidden_size, spec.rank, size, placement)
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
        for name, linear in self.low_rank.items():
            linear.load(reader, f"{prefix}{name}")
        parts, here = zip(self._spec.convolved, self._shares, strict=False), 0
        for name, total in convolution_tensors(self._spec).items():
            before = 0
            while before < total:
                size, share = next(parts)
                rows = slice(before + share.start, before + share.stop)
                part = slice(here, here + share.stop - share.start)
                reader.read(f"{prefix}{name}.weight", (total, self._spec.width), self.weight[part], rows)
                if self.bias is not None:
                    reader.read(f"{prefix}{name}.bias", (total,), self.bias[part], rows)
                before, here = before + size, part.stop

    def packed(self) -> tuple[PackedLinear, ...]:
        """Every matrix, in order."""
        low_rank = [matrix for linear in self.low_rank.values() for matrix in linear.packed()]
        return (*self.inputs.packed, *low_rank, self.output.packed)


class LowRankLinear:
    """A product of two matrices: every rank has the first one whole, and some outputs of the second one."""

    def __init__(self, in_features: int, rank: int, out_features: int, placement: WeightPlacement) -> None:
        self.down = whole_linear(in_features, rank, placement)
        self.up = ColumnParallelLinear(rank, (out_features,), placement)

    def load(self, reader: WeightReader, name: str) -> None:
        self.down.load(reader, f"{name}_down")
        self.up.load(reader, name)

    def packed(self) -> tuple[PackedLinear, ...]:
        """Both matrices, in order."""
        return (*self.down.packed, *self.up.packed)

    def __call__(self, x: Tensor) -> Tensor:  # [tokens, in_features]
        return self.up(self.down(x))


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
    """The gated delta rule (arXiv 2412.06464) as in Qwen3-Next, or with a decay of each row as in Kimi Linear."""

    def __init__(self, spec: GatedDeltaSpec, hidden_size: int, layer: int, placement: WeightPlacement) -> None:
        self._layer, self._kernels, self._spec = layer, placement.kernels, spec
        self.projections = Projections(spec, hidden_size, placement)
        self._heads = placement.share(spec.value_heads)
        self._key_heads = spec.key_heads // placement.group.size
        query, key, value, *rest = self.projections.inputs.sizes
        self._names, self._sizes = tuple(spec.inputs)[3:], [query + key + value, *rest]
        empty, self._decays = placement.device.empty, placement.share(spec.decays)
        self.decay_scale = empty((self._heads.stop - self._heads.start,), "float32")
        self.decay_bias = empty((self._decays.stop - self._decays.start,), "float32")
        self.norm = empty((spec.value_size,), "float32")
        self._rule = placement.kernels[gated_delta_rule]
        if spec.greatest_share != 1 or spec.strongest_decay is not None:
            self._rule = partial(self._rule, greatest_share=spec.greatest_share, strongest_decay=spec.strongest_decay)

    def load(self, reader: WeightReader, prefix: str) -> None:
        self.projections.load(reader, prefix)
        reader.read(f"{prefix}decay_scale.weight", (self._spec.value_heads,), self.decay_scale, self._heads)
        reader.read(f"{prefix}decay_bias.weight", (self._spec.decays,), self.decay_bias, self._decays)
        reader.read(f"{prefix}norm.weight", (self._spec.value_size,), self.norm)

    def packed(self) -> tuple[PackedLinear, ...]:
        return self.projections.packed()

    def __call__(self, x: Tensor, context: ForwardContext) -> Tensor:  # [tokens, hidden_size]
        rows, (tail, memory) = context.states_of(self._layer)
        kernels, layer, spec = self._kernels, self.projections, self._spec
        convolved, *others = split(layer.inputs(x), self._sizes)
        parts = dict(zip(self._names, others, strict=True))
        parts |= {name: linear(x) for name, linear in layer.low_rank.items()}
        convolved = kernels[causal_convolution](convolved, layer.weight, layer.bias, rows, tail)
        values = self._rule(
            convolved,
            parts["decay"],
            parts["beta"],
            self.decay_scale,
            self.decay_bias,
            rows,
            memory,
            self._key_heads,
            spec.is_tiled,
        )
        normed = kernels[gated_norm](values, parts["gate"], self.norm, spec.epsilon, spec.value_size, False, spec.gate)
        return layer.output(normed)


class StateSpace:
    """Mamba-2's layer (arXiv 2405.21060)."""

    def __init__(self, spec: StateSpaceSpec, hidden_size: int, layer: int, placement: WeightPlacement) -> None:
        self._layer, self._kernels, self._spec = layer, placement.kernels, spec
        self.projections = Projections(spec, hidden_size, placement)
        self._heads = placement.share(spec.heads)
        value, read, written, gate, step = self.projections.inputs.sizes
        self._sizes, self._convolved = [value + read + written, gate, step], [value, read, written]
        empty = placement.device.empty
        self.decay_scale, self.step_bias, self.skip = (empty((step,), "float32") for _ in range(3))
        self.norm = None
        if spec.norm_groups:
            self.norm = GatedNorm(
                spec.output_size, spec.norm_groups, spec.epsilon, placement, gate_first=spec.gate_first
            )

    def load(self, reader: WeightReader, prefix: str) -> None:
        self.projections.load(reader, prefix)
        for name, out in (("decay_scale", self.decay_scale), ("step_bias", self.step_bias), ("skip", self.skip)):
            reader.read(f"{prefix}{name}.weight", (self._spec.heads,), out, self._heads)
        if self.norm is not None:
            self.norm.load(reader, f"{prefix}norm")

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
        normed = kernels[silu_gate](values, gate) if self.norm is None else self.norm(values, gate)
        return layer.output(normed)


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


Recurrence = ShortConvolution | GatedDelta | StateSpace | SelectiveScan | LightningAttention


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
        case LightningSpec():
            return LightningAttention(spec, hidden_size, layer, placement)
