"""Norms over the last dimension, alone or fused with the residual addition: `NormSpec` as a layer.

Over features that ranks share, too.
"""

from functools import partial

from pyllm_kernels.ops.norm import add_layer_norm, add_rms_norm, layer_norm, rms_norm
from pyllm_kernels.tensors import Tensor, copied

from pyllm.families.spec import NormSpec
from pyllm.workers.layers.weight_placement import WeightPlacement
from pyllm.workers.loaders.weights import WeightReader


class Norm:
    """A norm, whole on every rank. `weight` is [size], as is the bias, if there is one."""

    def __init__(self, spec: NormSpec, size: int, placement: WeightPlacement) -> None:
        kernels = placement.kernels
        self._epsilon = spec.epsilon
        # `1 + w` in bfloat16 would lose most of a small w.
        dtype = "float32" if spec.unit_offset else placement.dtype
        self._is_scaled = spec.weight
        self.weight = placement.device.empty((size,), dtype)
        self._bias = placement.device.empty((size,), dtype) if spec.bias else None
        if spec.kind == "rms":
            self._normalise, self._add = kernels[rms_norm], kernels[add_rms_norm]
        else:
            self._normalise = partial(kernels[layer_norm], bias=self._bias)
            self._add = partial(kernels[add_layer_norm], bias=self._bias)

    def load(self, reader: WeightReader, name: str) -> None:
        """Fill the scale and the bias."""
        if self._is_scaled:
            reader.read(f"{name}.weight", tuple(self.weight.shape), self.weight)
        else:
            self.weight[:] = 1
        if self._bias is not None:
            reader.read(f"{name}.bias", tuple(self._bias.shape), self._bias)

    def __call__(self, x: Tensor) -> Tensor:  # [tokens, size] -> [tokens, size]
        return self._normalise(x, self.weight, self._epsilon)

    def add(self, x: Tensor, residual: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        """Add `factor * x` [tokens, size] to the residual stream; return the normalised stream and the stream."""
        return self._add(x, residual, self.weight, self._epsilon, factor)


class SharedNorm:
    """A norm over the features of all ranks, of which each has some; bitwise equal to the norm on one rank.

    `share` are this rank's features. Groups of `ranks_a_part` adjacent ranks have the same ones.
    """

    def __init__(
        self, spec: NormSpec, size: int, placement: WeightPlacement, share: slice, ranks_a_part: int = 1
    ) -> None:
        self._norm = Norm(spec, size, placement)
        self._group, self._device = placement.group, placement.device
        self._share, self._ranks_a_part = share, ranks_a_part

    def load(self, reader: WeightReader, name: str) -> None:
        """Fill the scale and the bias."""
        self._norm.load(reader, name)

    def __call__(self, part: Tensor) -> Tensor:  # [tokens, features of this rank], both
        if self._group.size == 1:
            return self._norm(part)
        whole = self._device.concatenate(self._group.gather(part)[:: self._ranks_a_part], -1)
        return copied(self._norm(whole)[:, self._share])
