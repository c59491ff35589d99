"""Weights that are made up: of the right shapes, small, and the same at every start."""

from pathlib import Path

import torch

from pyllm.checkpoint.reader import read_checkpoint
from pyllm.workers.loaders.dummy import DummyReader
from tests.tiny_model import write_tiny_model


def test_they_are_small_and_the_same_again(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(write_tiny_model(tmp_path), has_dummy_weights=True)
    name, shape = "layers.0.feed_forward.up.weight", (96, 48)
    out, again = torch.zeros(32, 48), torch.zeros(32, 48)
    DummyReader(checkpoint).read(name, shape, out, slice(0, 32))
    DummyReader(checkpoint).read(name, shape, again, slice(0, 32))
    assert torch.equal(out, again)
    assert 0 < out.abs().max() <= 1e-3
    other = torch.zeros(32, 48)
    DummyReader(checkpoint).read("layers.1.feed_forward.up.weight", shape, other, slice(0, 32))
    assert not torch.equal(out, other)
    rows = DummyReader(checkpoint).rows(name, shape, slice(32, 96), slice(0, 16))
    assert (len(rows), rows.in_features) == (64, 16)
