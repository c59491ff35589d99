"""Rows of a position embedding that no file has as they are. Knows no layer."""

import math
from collections.abc import Iterable

import numpy as np
from pyllm_kernels import MatrixRows
from pyllm_kernels.tensors import Array, Tensor

from pyllm.families.spec import ModelSpec
from pyllm.workers.loaders.weights import WHOLE, WeightReader, fill_finite

POSITIONS, TYPES = "position_embedding.weight", "type_embedding.weight"


class MatrixReader:
    """A `WeightReader` of one matrix in memory."""

    def __init__(self, matrix: Array) -> None:
        self._matrix = matrix

    def read(self, name: str, shape: tuple[int, ...], out: Tensor, rows: slice = WHOLE, columns: slice = WHOLE) -> None:
        """See `WeightReader.read`."""
        del shape
        fill_finite(name, out, self._matrix[rows, columns])

    def rows(
        self,
        name: str,
        shape: tuple[int, int],
        rows: slice = WHOLE,
        columns: slice = WHOLE,
        keep_quantised: bool = False,
    ) -> MatrixRows:
        """See `WeightReader.rows`."""
        del name, shape, keep_quantised
        return MatrixRows.of(self._matrix[rows, columns])

    def release(self, names: Iterable[str]) -> None:
        """See `WeightReader.release`; there is no file."""
        del names


def position_reader(spec: ModelSpec, reader: WeightReader) -> WeightReader:
    """The reader of a model's position embedding, whose rows may be computed or, for pairs of texts, made of others."""
    if spec.sinusoids is not None:
        return MatrixReader(_sinusoids(spec.sinusoids, spec.positions, spec.hidden_size))
    return MatrixReader(_rows_of_pairs(spec, reader)) if spec.tells_texts_apart else reader


def _sinusoids(first: int, num_positions: int, size: int) -> Array:
    """The sines of each position, then its cosines (arXiv 1706.03762), in float32.

    Row 0 has the angles of the position `first`; the frequencies fall from 1 to 1/10,000, both included.
    """
    half = size // 2
    steps = np.arange(half, dtype=np.float32) * np.float32(-math.log(10_000) / (half - 1))
    angles = np.outer(np.arange(first, first + num_positions, dtype=np.float32), np.exp(steps))
    return np.concatenate((np.sin(angles), np.cos(angles)), axis=1)


def _rows_of_pairs(spec: ModelSpec, reader: WeightReader) -> Array:
    """The sums of each position's row and the first text's type, then of each and the second text's, in float32."""
    positions = np.empty((spec.positions, spec.hidden_size), np.float32)
    types = np.empty((2, spec.hidden_size), np.float32)
    for name, out in ((POSITIONS, positions), (TYPES, types)):
        reader.read(name, out.shape, out)
    return np.concatenate([positions + row for row in types])
