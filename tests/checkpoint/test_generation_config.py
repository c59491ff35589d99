"""Sampling defaults are those that a model's files name, in either format."""

import json
from pathlib import Path
from typing import Any

import pytest

from pyllm.checkpoint.generation_config import SamplingDefaults
from pyllm.checkpoint.reader import read_checkpoint
from pyllm.errors import ConfigError
from tests.tiny_gguf import write_tiny_gguf
from tests.tiny_model import write_tiny_model


def folder_with(path: Path, fields: dict[str, Any]) -> str:
    folder = write_tiny_model(path)
    (Path(folder) / "generation_config.json").write_text(json.dumps(fields))
    return folder


def test_of_a_folder(tmp_path: Path) -> None:
    fields = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": None, "max_new_tokens": 512}
    defaults = read_checkpoint(folder_with(tmp_path / "tiny", fields)).sampling
    assert defaults == SamplingDefaults(temperature=0.6, top_p=0.95, top_k=20, max_tokens=512)


def test_without_any_there_are_none(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "tiny")
    (Path(folder) / "generation_config.json").unlink(missing_ok=True)
    assert read_checkpoint(folder).sampling == SamplingDefaults()


def test_of_a_gguf_file(tmp_path: Path) -> None:
    source = write_tiny_model(tmp_path / "tiny")
    fields = {"general.sampling.temp": 0.2, "general.sampling.top_k": 64, "general.sampling.penalty_repeat": 1.1}
    path = write_tiny_gguf(source, tmp_path / "tiny.gguf", fields=fields)
    assert read_checkpoint(path).sampling == SamplingDefaults(temperature=0.2, top_k=64, repetition_penalty=1.1)


@pytest.mark.parametrize("value", ["hot", [0.5], True])
def test_what_is_no_number_is_named_with_its_file(tmp_path: Path, value: object) -> None:
    folder = folder_with(tmp_path / "tiny", {"temperature": value})
    with pytest.raises(ConfigError, match=r"generation_config\.json: temperature"):
        read_checkpoint(folder)
