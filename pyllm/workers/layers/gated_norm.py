"""A norm of groups of features with a gate, over the features of one rank or of several."""

from typing import Literal

from pyllm_kernels.ops.gated_norm import gated_norm
from pyllm_kernels.tensors import Tensor, copied

from pyllm.workers.layers.weight_placement import WeightPlacement
from pyllm.workers.loaders.weights import WeightReader


class GatedNorm:
    """`gated_norm` of `groups` groups of all ranks' features, of which each rank has some.

    A group that several ranks share is normalised by each of them, bitwise as on one rank.
    """

    def __init__(
        self,
        features: int,
        groups: int,
        epsilon: float,
        placement: WeightPlacement,
        *,
        gate_first: bool = False,
        function: Literal["silu", "sigmoid"] = "silu",
    ) -> None:
        self._normalise = placement.kernels[gated_norm]
        self._group, self._device = placement.group, placement.device
        self._features, self._own = features, placement.share(features)
        self._is_cut = groups % placement.group.size != 0
        self._arguments = epsilon, features // groups, gate_first, function
        own = self._own.stop - self._own.start
        self.weight = placement.device.empty((features if self._is_cut else own,), "float32")

    def load(self, reader: WeightReader, name: str) -> None:
        """Fill the scale."""
        own = slice(None) if self._is_cut else self._own
        reader.read(f"{name}.weight", (self._features,), self.weight, own)

    def __call__(self, values: Tensor, gate: Tensor) -> Tensor:  # [tokens, features of this rank], both
        if not self._is_cut:
            return self._normalise(values, gate, self.weight, *self._arguments)
        values, gate = (self._device.concatenate(self._group.gather(part), -1) for part in (values, copied(gate)))
        return copied(self._normalise(values, gate, self.weight, *self._arguments)[:, self._own])
