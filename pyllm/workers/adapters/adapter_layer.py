"""The matrices of all adapters on the device for one linear layer, and the op that adds their products."""

from collections.abc import Callable, Sequence

import numpy as np
from pyllm_kernels import Kernels
from pyllm_kernels.host_copies import fill
from pyllm_kernels.ops.add_lora import LoraMatrices, add_lora
from pyllm_kernels.tensors import Array, Tensor

from pyllm.workers.devices.device import Device
from pyllm.workers.loaders.weights import MatrixPart


class AdapterLayer:
    """A linear layer of one or several `parts`, for `max_loras` adapters of a rank up to `max_rank`.

    `rows_of(n)` gives the adapter of each of a step's n tokens, int32.
    """

    def __init__(
        self,
        parts: Sequence[MatrixPart],
        dtype: str,
        kernels: Kernels,
        device: Device,
        *,
        max_loras: int,
        max_rank: int,
        rows_of: Callable[[int], Tensor],
    ) -> None:
        self._kernels = kernels
        self._rows_of = rows_of
        self._max_rank = max_rank
        sizes = tuple(part.share[0] for part in parts)
        zeros, features = device.zeros, parts[0].share[1]
        self.matrices = LoraMatrices(
            down=zeros((max_loras, len(parts) * max_rank, features), dtype),
            up=zeros((max_loras, max_rank, sum(sizes)), dtype),
            ranks=zeros((max_loras, len(parts)), "int32"),
            sizes=sizes,
        )

    def add(self, x: Tensor, products: Tensor) -> Tensor:
        """Add the products of each row's adapter to `products`, in place."""
        return self._kernels[add_lora](x, products, self._rows_of(len(x)), self.matrices)

    def assign(self, index: int, parts: Sequence[tuple[Array, Array] | None]) -> None:
        """Put an adapter into device slot `index`: for each part its `down` and its transposed `up`, or None."""
        matrices, start = self.matrices, 0
        ranks = np.array([0 if part is None else len(part[0]) for part in parts], np.int32)
        for number, (part, size) in enumerate(zip(parts, matrices.sizes, strict=True)):
            if part is not None:
                (down, up), rank, first = part, ranks[number], number * self._max_rank
                fill(matrices.down[index, first : first + rank], down)
                fill(matrices.up[index, :rank, start : start + size], up)
            start += size
        fill(matrices.ranks[index], ranks)
