"""Numbers by distance, against transformers' buckets."""

from typing import Any

import numpy as np
import torch
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from pyllm.families.spec import RelativePositions
from pyllm.workers.loaders.position_rows import MatrixReader
from pyllm.workers.loaders.relative_biases import num_biases, read_biases


def test_each_distance_has_the_number_of_its_bucket() -> None:
    relative = RelativePositions(length=600)
    by_bucket = np.random.default_rng(0).normal(size=(32, 5)).astype(np.float32)
    buckets = MPNetEncoder.relative_position_bucket(torch.arange(-600, 600))
    for heads in (slice(0, 5), slice(2, 4)):
        out: Any = np.empty((heads.stop - heads.start, num_biases(relative)), np.float32)
        read_biases(MatrixReader(by_bucket), relative, 5, out, heads)
        np.testing.assert_array_equal(out[:, :-16], by_bucket[buckets.numpy(), heads].T)
