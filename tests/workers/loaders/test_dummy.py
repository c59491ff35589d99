"""Weights that are made up: of the right shapes, small, the same at each start, and each rank's a part of the whole."""

from pathlib import Path

import numpy as np
from pyllm_kernels.tensors import Array

from pyllm.checkpoint.reader import read_checkpoint
from pyllm.checkpoint.types import Checkpoint
from pyllm.workers.loaders.dummy import DummyReader
from pyllm.workers.loaders.weights import WHOLE
from tests.tiny_model import write_tiny_model

UP, SHAPE = "layers.0.feed_forward.up.weight", (96, 48)


def read(checkpoint: Checkpoint, name: str, rows: slice = WHOLE, columns: slice = WHOLE) -> Array:
    out = np.full(SHAPE, np.nan, np.float32)[rows, columns].copy()
    DummyReader(checkpoint).read(name, SHAPE, out, rows, columns)
    return out


def test_they_are_small_and_the_same_again(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(write_tiny_model(tmp_path), has_dummy_weights=True)
    whole = read(checkpoint, UP)
    np.testing.assert_array_equal(read(checkpoint, UP), whole)
    assert 0 < np.abs(whole).max() <= 1e-3
    assert len(np.unique(whole)) > whole.size / 2
    assert not np.array_equal(read(checkpoint, "layers.1.feed_forward.up.weight"), whole)


def test_the_parts_of_ranks_are_those_of_the_whole(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(write_tiny_model(tmp_path), has_dummy_weights=True)
    whole = read(checkpoint, UP)
    for rows, columns in ((slice(32, 96), WHOLE), (WHOLE, slice(16, 48)), (slice(5, 7), slice(0, 16))):
        np.testing.assert_array_equal(read(checkpoint, UP, rows, columns), whole[rows, columns])
        packed = DummyReader(checkpoint).rows(UP, SHAPE, rows, columns)
        np.testing.assert_array_equal(packed.numbers(), whole[rows, columns])
    scale, part = np.zeros(48, np.float32), np.zeros(16, np.float32)
    DummyReader(checkpoint).read("norm.weight", (48,), scale)
    DummyReader(checkpoint).read("norm.weight", (48,), part, slice(16, 32))
    assert scale.any()
    np.testing.assert_array_equal(part, scale[16:32])
