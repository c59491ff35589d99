"""Residual streams side by side (AltUp, arXiv 2301.13310), and the augmented residual of a layer (arXiv 2411.07501).

Streams are one tensor [tokens, count * hidden_size]. Every rank has all of this whole. Knows no attention.
"""

from collections.abc import Iterator
from dataclasses import replace

from pyllm_kernels import PackedLinear
from pyllm_kernels.ops.elementwise import add, scale_and_cap
from pyllm_kernels.ops.streams import (
    add_to_streams,
    correct_streams,
    join_streams,
    match_magnitudes,
    predict_streams,
)
from pyllm_kernels.tensors import Tensor, split

from pyllm.families.spec import StreamsSpec
from pyllm.workers.layers.linear import ColumnParallelLinear, whole_linear
from pyllm.workers.layers.norm import Norm
from pyllm.workers.layers.weight_placement import WeightPlacement
from pyllm.workers.loaders.weights import WeightReader


class StreamProjections:
    """The projections of the embedding to all streams but the first, or of these streams to parts of the result."""

    def __init__(self, spec: StreamsSpec, hidden_size: int, placement: WeightPlacement) -> None:
        self._kernels = placement.kernels
        self._sizes = (hidden_size,) * spec.count
        self._linears = [whole_linear(hidden_size, hidden_size, placement) for _ in range(spec.count - 1)]

    def load(self, reader: WeightReader, name: str) -> None:
        """Fill every parameter."""
        for index, linear in enumerate(self._linears):
            linear.load(reader, f"{name}.{index}")

    def matrices(self) -> Iterator[PackedLinear]:
        """Every matrix, in order."""
        for linear in self._linears:
            yield from linear.packed

    def begin(self, x: Tensor) -> Tensor:
        """The streams of an embedding [tokens, hidden_size]."""
        streams = x
        for linear in self._linears:
            streams = self._kernels[join_streams](streams, self._kernels[match_magnitudes](linear(x), x))
        return streams

    def end(self, streams: Tensor) -> Tensor:
        """The mean of the first stream and the projections of the others, [tokens, hidden_size]."""
        first, *others = split(streams, self._sizes)
        total = first
        for linear, stream in zip(self._linears, others, strict=True):
            part = linear(self._kernels[join_streams](stream, stream[:, :0]))  # Linear layers take contiguous rows.
            total = self._kernels[add](self._kernels[match_magnitudes](part, first), total)
        return self._kernels[scale_and_cap](total, 1 / len(self._sizes))


class LayerStreams:
    """The part of a layer that predicts and corrects the streams, and its augmented residual."""

    def __init__(self, spec: StreamsSpec, hidden_size: int, placement: WeightPlacement) -> None:
        self._kernels, self._spec = placement.kernels, spec
        small = replace(placement, quantization="none")  # A few numbers, which decide on all streams.
        self._predict = whole_linear(spec.count, spec.count**2, small)
        self._correct = whole_linear(spec.count, spec.count, small)
        self._router = whole_linear(hidden_size, spec.count, small)
        self._router_norm = Norm(spec.norm, hidden_size, placement)
        self._left = whole_linear(hidden_size, spec.augmented_rank, placement)
        self._right = whole_linear(spec.augmented_rank, hidden_size, placement)
        self._norm = Norm(spec.norm, hidden_size, placement)
        self._scale = placement.empty(hidden_size)
        self._size = hidden_size

    def load(self, reader: WeightReader, prefix: str) -> None:
        """Fill every parameter."""
        names = {"predict": self._predict, "correct": self._correct, "router": self._router}
        for name, linear in names.items():
            linear.load(reader, f"{prefix}streams.{name}")
        self._router_norm.load(reader, f"{prefix}streams.router_norm")
        self._left.load(reader, f"{prefix}augmented.left")
        self._right.load(reader, f"{prefix}augmented.right")
        self._norm.load(reader, f"{prefix}augmented.norm")
        if self._spec.scaled:
            reader.read(f"{prefix}streams.scale.weight", (self._size,), self._scale)
        else:
            self._scale[:] = 1

    def packed(self) -> Iterator[PackedLinear]:
        """Every matrix, in order."""
        linears: tuple[ColumnParallelLinear, ...]
        linears = (self._predict, self._correct, self._router, self._left, self._right)
        for linear in linears:
            yield from linear.packed

    def predict(self, streams: Tensor) -> tuple[Tensor, Tensor]:
        """The predicted streams, and the active one of them [tokens, hidden_size]."""
        predicted = self._kernels[predict_streams](streams, self._predict(self._route(self._active(streams))))
        return predicted, self._active(predicted)

    def augment(self, x: Tensor) -> Tensor:
        """The augmented residual of the layer's normalised input, [tokens, hidden_size] both."""
        return self._kernels[add](self._norm(self._right(self._left(x))), x)

    def correct(self, predicted: Tensor, activated: Tensor) -> tuple[Tensor, Tensor]:
        """The streams, corrected by the layer's result [tokens, hidden_size]; and the scaled active one of them."""
        factors = self._correct(self._route(activated))
        return self._kernels[correct_streams](predicted, activated, factors, self._spec.active, self._scale)

    def add_to_others(self, streams: Tensor, x: Tensor) -> Tensor:
        """Add x [tokens, hidden_size] to all streams but the first, in place; return the streams."""
        self._kernels[add_to_streams](streams[:, self._size :], x)
        return streams

    def _active(self, streams: Tensor) -> Tensor:
        return streams[:, self._spec.active * self._size : (self._spec.active + 1) * self._size]

    def _route(self, x: Tensor) -> Tensor:
        """Numbers from -1 to 1, [tokens, count]."""
        return self._kernels[scale_and_cap](self._router(self._router_norm(x)), 1 / self._size, 1.0)
