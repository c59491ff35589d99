"""The layers between pooling and an embedding (`ModelSpec.dense`), on the host, for one vector at a time.

In float64, as pooling is, so that an embedding depends on its text alone. Knows no slot and no step.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyllm.families.spec import DenseSpec
from pyllm.workers.loaders.weights import WeightReader

_Array = npt.NDArray[np.float64]


class _Layer(NamedTuple):
    weight: _Array  # [out_features, in_features]
    bias: _Array | float
    has_tanh: bool


class DenseLayers:
    """The layers in their order; none leave a vector as it is."""

    def __init__(self, specs: Sequence[DenseSpec]) -> None:
        self._specs = specs
        self._layers: list[_Layer] = []

    def load(self, reader: WeightReader) -> None:
        """Fill every parameter; adjacent layers without an activation between them become one."""
        for index, spec in enumerate(self._specs):
            weight = _read(reader, f"dense.{index}.weight", (spec.out_features, spec.in_features))
            bias = _read(reader, f"dense.{index}.bias", (spec.out_features,)) if spec.bias else 0.0
            if self._layers and not self._layers[-1].has_tanh:
                before = self._layers.pop()
                weight, bias = weight @ before.weight, bias + weight @ np.broadcast_to(before.bias, spec.in_features)
            self._layers.append(_Layer(weight, bias, spec.activation == "tanh"))

    def __call__(self, vector: _Array) -> _Array:  # [features]
        for layer in self._layers:
            vector = layer.weight @ vector + layer.bias
            if layer.has_tanh:
                vector = np.tanh(vector)
        return vector


def _read(reader: WeightReader, name: str, shape: tuple[int, ...]) -> _Array:
    numbers = np.empty(shape, np.float32)
    reader.read(name, shape, numbers)
    return numbers.astype(np.float64)
