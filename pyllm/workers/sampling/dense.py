"""The layers between pooling and an embedding or scores (`ModelSpec.dense`), on the host, for one vector at a time.

In float64, as pooling is, so that an embedding depends on its text alone. Knows no slot and no step.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyllm.families.spec import DenseSpec
from pyllm.workers.loaders.weights import WeightReader

_LEAST_LENGTH = 1e-12  # as in torch's `normalize`
_ROOT_OF_2 = math.sqrt(2)
_Array = npt.NDArray[np.float64]


class _Layer(NamedTuple):
    weight: _Array  # [out_features, in_features]
    bias: _Array | float
    activation: str
    norm: "_Norm | None"


class _Norm(NamedTuple):
    weight: _Array  # [out_features]
    bias: _Array | float
    epsilon: float


class DenseLayers:
    """The layers in their order; none leave a vector as it is."""

    def __init__(self, specs: Sequence[DenseSpec]) -> None:
        self._specs = specs
        self._layers: list[_Layer] = []

    def load(self, reader: WeightReader) -> None:
        """Fill every parameter; adjacent layers with nothing between them become one."""
        for index, spec in enumerate(self._specs):
            weight = _read(reader, f"dense.{index}.weight", (spec.out_features, spec.in_features))
            bias = _read(reader, f"dense.{index}.bias", (spec.out_features,)) if spec.bias else 0.0
            if self._layers and self._layers[-1].activation == "identity" and self._layers[-1].norm is None:
                before = self._layers.pop()
                weight, bias = weight @ before.weight, bias + weight @ np.broadcast_to(before.bias, spec.in_features)
            self._layers.append(_Layer(weight, bias, spec.activation, _read_norm(reader, index, spec)))

    def __call__(self, vector: _Array) -> _Array:  # [features]
        for layer in self._layers:
            vector = layer.weight @ vector + layer.bias
            if layer.activation == "tanh":
                vector = np.tanh(vector)
            elif layer.activation == "gelu":
                vector = vector * np.array([0.5 * math.erfc(-number / _ROOT_OF_2) for number in vector])
            elif layer.activation == "relu":
                vector = np.maximum(vector, 0)
            if (norm := layer.norm) is not None:
                centred = vector - vector.mean()
                vector = centred / np.sqrt(np.square(centred).mean() + norm.epsilon) * norm.weight + norm.bias
        return vector


def unit_length(vector: _Array) -> _Array:
    """The vector, scaled to length 1."""
    length = np.sqrt(np.square(vector).sum())
    scaled: _Array = vector / np.maximum(length, _LEAST_LENGTH)
    return scaled


def _read_norm(reader: WeightReader, index: int, spec: DenseSpec) -> _Norm | None:
    if spec.norm is None:
        return None
    shape, name = (spec.out_features,), f"dense.{index}.norm"
    bias = _read(reader, f"{name}.bias", shape) if spec.norm.bias else 0.0
    return _Norm(_read(reader, f"{name}.weight", shape), bias, spec.norm.epsilon)


def _read(reader: WeightReader, name: str, shape: tuple[int, ...]) -> _Array:
    numbers = np.empty(shape, np.float32)
    reader.read(name, shape, numbers)
    return numbers.astype(np.float64)
