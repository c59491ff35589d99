"""The relative position bias of attention by distance, from that of a model's buckets. Knows no layer."""

import math

import numpy as np
from pyllm_kernels import RELATIVE_BIAS_PADDING
from pyllm_kernels.tensors import Array, Tensor

from pyllm.families.spec import RelativeBiasSpec
from pyllm.workers.loaders.weights import WHOLE, WeightReader, fill_finite

_NAME = "relative_bias.weight"
_FARTHEST = 128  # From this distance on all keys are in the last bucket.


def relative_bias_size(spec: RelativeBiasSpec) -> int:
    """The numbers of one head, see `AttentionLayer.relative_bias`."""
    return 2 * spec.length + RELATIVE_BIAS_PADDING


def read_relative_bias(
    reader: WeightReader, spec: RelativeBiasSpec, num_heads: int, out: Tensor, heads: slice = WHOLE
) -> None:
    """Fill `out` [heads, relative_bias_size], float32, for some of the model's `num_heads` heads.

    Raises:
        ConfigError: as `WeightReader.read`.
    """
    by_bucket = np.empty((spec.buckets, num_heads), np.float32)
    reader.read(_NAME, by_bucket.shape, by_bucket)
    numbers = by_bucket[_buckets(np.arange(-spec.length, spec.length), spec.buckets), heads].T
    fill_finite(_NAME, out, np.ascontiguousarray(np.pad(numbers, ((0, 0), (0, RELATIVE_BIAS_PADDING)))))


def _buckets(distances: Array, count: int) -> Array:
    """T5's bucket of each distance (arXiv 1910.10683), [distances], rounded to float32 as in transformers' MPNet.

    Near distances have a bucket each, far ones share them; half of the buckets are for keys after the query.
    """
    half = count // 2
    single = half // 2
    far = np.abs(distances)
    steps = np.log(np.maximum(far, 1).astype(np.float32) / np.float32(single))
    steps /= np.float32(math.log(_FARTHEST / single))
    shared = np.minimum(single + (steps * np.float32(half - single)).astype(np.int64), half - 1)
    return np.where(distances > 0, half, 0) + np.where(far < single, far, shared)
