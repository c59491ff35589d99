"""Dummy weights, to measure speed without a model's files: small random numbers, the same at every start."""

import zlib
from collections.abc import Iterable

import numpy as np
from pyllm_kernels import MatrixRows
from pyllm_kernels.tensors import Array, Tensor, fill, numpy_dtype

from pyllm.checkpoint.types import Checkpoint
from pyllm.workers.loaders.tensor_table import DTYPES
from pyllm.workers.loaders.weights import WHOLE

# As in vLLM: large enough that logits differ, small enough that nothing overflows in float16.
_LARGEST = 1e-3


class DummyReader:
    """Draws numbers seeded by the parameter's name. The parts of several ranks differ from the whole on one rank."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._types = {entry.name: entry.source.type for entry in checkpoint.tensors}

    def read(self, name: str, shape: tuple[int, ...], out: Tensor, rows: slice = WHOLE, columns: slice = WHOLE) -> None:
        """See `WeightReader.read`."""
        del shape, rows, columns
        fill(out, self._draw(name, tuple(out.shape)))

    def rows(
        self,
        name: str,
        shape: tuple[int, int],
        rows: slice = WHOLE,
        columns: slice = WHOLE,
        keep_quantised: bool = False,
    ) -> MatrixRows:
        """See `WeightReader.rows`; there are no quantised blocks."""
        del keep_quantised
        sizes = (len(range(*part.indices(size))) for part, size in zip((rows, columns), shape, strict=True))
        return MatrixRows.of(self._draw(name, tuple(sizes)))

    def release(self, names: Iterable[str]) -> None:
        """See `WeightReader.release`; there is no file."""

    def _draw(self, name: str, shape: tuple[int, ...]) -> Array:
        numbers = np.random.default_rng(zlib.crc32(name.encode())).random(shape, np.float32)
        return ((2 * numbers - 1) * np.float32(_LARGEST)).astype(numpy_dtype(DTYPES[self._types[name]]))
