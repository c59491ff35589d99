"""Numbers that are added to attention scores by distance (`AttentionLayer.biases`), from those that a model has."""

import math

import numpy as np
from pyllm_kernels.tensors import Array, Tensor

from pyllm.families.spec import RelativePositions
from pyllm.workers.loaders.weights import WHOLE, WeightReader, fill_finite

_NAME = "relative_bias.weight"
_UNREAD = 16  # numbers at the end of each head's
_FARTHEST = 128  # From this distance on all keys are in the last bucket.


def num_biases(relative: RelativePositions) -> int:
    """The numbers of one head."""
    return 2 * relative.length + _UNREAD


def read_biases(
    reader: WeightReader, relative: RelativePositions, num_heads: int, out: Tensor, heads: slice = WHOLE
) -> None:
    """Fill `out` [heads, num_biases], float32, for some of the model's `num_heads` heads."""
    by_bucket = np.empty((relative.buckets, num_heads), np.float32)
    reader.read(_NAME, by_bucket.shape, by_bucket)
    numbers = by_bucket[_buckets(np.arange(-relative.length, relative.length), relative.buckets), heads].T
    fill_finite(_NAME, out, np.ascontiguousarray(np.pad(numbers, ((0, 0), (0, _UNREAD)))))


def _buckets(distances: Array, count: int) -> Array:
    """The bucket of each distance: near ones have one each, far ones share them; half are for keys after the query.

    Rounded to float32 as in transformers.
    """
    half = count // 2
    single = half // 2
    far = np.abs(distances)
    steps = np.log(np.maximum(far, 1).astype(np.float32) / np.float32(single)) / np.float32(
        math.log(_FARTHEST / single)
    )
    shared = np.minimum(single + (steps * np.float32(half - single)).astype(np.int64), half - 1)
    return np.where(distances > 0, half, 0) + np.where(far < single, far, shared)
