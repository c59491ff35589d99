"""The bias of each distance, against transformers' buckets."""

from typing import Any

import numpy as np
import torch
from pyllm_kernels import RELATIVE_BIAS_PADDING
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from pyllm.families.spec import RelativeBiasSpec
from pyllm.workers.loaders.position_rows import MatrixReader
from pyllm.workers.loaders.relative_bias import read_relative_bias, relative_bias_size


def test_each_distance_has_the_bias_of_its_bucket() -> None:
    relative = RelativeBiasSpec(length=600, buckets=32)
    by_bucket = np.random.default_rng(0).normal(size=(32, 5)).astype(np.float32)
    buckets = MPNetEncoder.relative_position_bucket(torch.arange(-600, 600))
    for heads in (slice(0, 5), slice(2, 4)):
        out: Any = np.empty((heads.stop - heads.start, relative_bias_size(relative)), np.float32)
        read_relative_bias(MatrixReader(by_bucket), relative, 5, out, heads)
        np.testing.assert_array_equal(out[:, :-RELATIVE_BIAS_PADDING], by_bucket[buckets.numpy(), heads].T)
