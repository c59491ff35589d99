"""A checkpoint that was read on another machine, where this one has the files elsewhere, other ones, or none."""

from pathlib import Path

import msgspec
import pytest

from pyllm.checkpoint.reader import read_checkpoint
from pyllm.checkpoint.types import Checkpoint
from pyllm.config.model_settings import ModelConfig
from pyllm.errors import ConfigError
from pyllm.workers.loaders.local_files import on_this_machine
from tests.tiny_model import write_tiny_model


def elsewhere(checkpoint: Checkpoint) -> Checkpoint:
    """As another machine has it, whose user has another home."""
    return msgspec.structs.replace(checkpoint, files=tuple(f"/nowhere{file}" for file in checkpoint.files))


def test_files_that_are_there_are_taken_as_named(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(write_tiny_model(tmp_path / "tiny"))
    assert on_this_machine(checkpoint, ModelConfig(model="not-looked-at")) is checkpoint


def test_the_model_is_found_by_its_name(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny")
    checkpoint = read_checkpoint(model)
    assert on_this_machine(elsewhere(checkpoint), ModelConfig(model=model)) == checkpoint


def test_other_weights_are_refused(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(write_tiny_model(tmp_path / "tiny"))
    other = write_tiny_model(tmp_path / "other", seed=1)
    with pytest.raises(ConfigError, match="has other weights than where pyllm was started"):
        on_this_machine(elsewhere(checkpoint), ModelConfig(model=other))


def test_a_machine_without_the_model_says_which_file_it_lacks(tmp_path: Path) -> None:
    checkpoint = elsewhere(read_checkpoint(write_tiny_model(tmp_path / "tiny")))
    with pytest.raises(ConfigError, match=r"has no /nowhere.*model\.safetensors, and no model .*every node needs"):
        on_this_machine(checkpoint, ModelConfig(model=str(tmp_path / "absent")))
