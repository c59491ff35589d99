"""Norms over the last dimension, alone or fused with the residual addition: `NormSpec` as a layer."""

from pyllm_kernels.ops.norm import add_layer_norm, add_rms_norm, layer_norm, rms_norm
from pyllm_kernels.tensors import Tensor

from pyllm.families.spec import NormSpec
from pyllm.workers.layers.weight_placement import WeightPlacement
from pyllm.workers.loaders.weights import WeightReader


class Norm:
    """A norm, whole on every rank. `weight` is [size]."""

    def __init__(self, spec: NormSpec, size: int, placement: WeightPlacement) -> None:
        kernels = placement.kernels
        self._epsilon = spec.epsilon
        self._normalise = kernels[rms_norm] if spec.kind == "rms" else kernels[layer_norm]
        self._add = kernels[add_rms_norm] if spec.kind == "rms" else kernels[add_layer_norm]
        # `1 + w` in bfloat16 would lose most of a small w.
        dtype = "float32" if spec.unit_offset else placement.dtype
        self.weight = placement.device.empty((size,), dtype)

    def load(self, reader: WeightReader, name: str) -> None:
        """Fill the scale."""
        reader.read(f"{name}.weight", tuple(self.weight.shape), self.weight)

    def __call__(self, x: Tensor) -> Tensor:  # [tokens, size] -> [tokens, size]
        return self._normalise(x, self.weight, self._epsilon)

    def add(self, x: Tensor, residual: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        """Add `factor * x` [tokens, size] to the residual stream; return the normalised stream and the stream."""
        return self._add(x, residual, self.weight, self._epsilon, factor)
