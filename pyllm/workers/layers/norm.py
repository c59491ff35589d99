"""Root mean square normalisation (arXiv 1910.07467), with the residual stream beside it."""

from torch import Tensor

from pyllm.workers.layers.placement import Placement
from pyllm.workers.loaders.weights import WeightReader
from pyllm.workers.step.forward_context import ForwardContext


class RMSNorm:
    """Whole on every rank."""

    def __init__(self, size: int, epsilon: float, placement: Placement) -> None:
        self._epsilon = epsilon
        self.weight = placement.empty(size)

    def load(self, reader: WeightReader, name: str) -> None:
        """Fill the scale."""
        reader.read(name, tuple(self.weight.shape), self.weight)

    def __call__(self, x: Tensor, residual: Tensor | None, context: ForwardContext) -> tuple[Tensor, Tensor]:
        """Add `x` [tokens, size] to the residual stream; gives the normalised stream and the stream itself."""
        if residual is None:
            return context.kernels.rms_norm(x, self.weight, self._epsilon), x
        return context.kernels.add_rms_norm(x, residual, self.weight, self._epsilon)
