"""JSON as Python writes it, which is more than JSON."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from pyllm.checkpoint.json_files import read_json
from pyllm.checkpoint.reader import read_checkpoint
from pyllm.errors import ConfigError
from tests.tiny_model import write_tiny_model

POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 1234567\n"


def test_infinity_and_nan_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"time_step_limit": [0.0, Infinity], "low": -Infinity, "none": NaN, "text": "Infinity"}')
    found = read_json(path, dict[str, Any])
    assert found["time_step_limit"] == [0.0, math.inf]
    assert (found["low"], found["text"]) == (-math.inf, "Infinity")
    assert math.isnan(found["none"])


def test_so_are_numbers_beyond_the_range_of_floats(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"tokens": {"7": 1e400}, "low": -1e400}')
    assert read_json(path, dict[str, Any]) == {"tokens": {"7": math.inf}, "low": -math.inf}
    path.write_text('{"7": 1e400}')
    assert read_json(path, dict[int, float]) == {7: math.inf}


def test_half_of_a_surrogate_pair_becomes_a_question_mark(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(r'{"text": "a\ud83d", "whole": "\ud83d\ude00", "\ude00": 1}')
    assert read_json(path, dict[str, Any]) == {"text": "a?", "whole": "\U0001f600", "?": 1}


def test_a_value_of_another_type_is_refused_once_python_has_read_it(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"a": 1e400, "b": "x"}')
    with pytest.raises(ConfigError, match=r"Expected `float`, got `str`"):
        read_json(path, dict[str, float])


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors", "chat_template.jinja"])
def test_a_pointer_of_git_lfs_is_named(tmp_path: Path, name: str) -> None:
    folder = Path(write_tiny_model(tmp_path))
    (folder / name).write_text(POINTER)
    with pytest.raises(ConfigError, match=rf"{name} is a Git LFS pointer, not the file: run `git lfs pull` in"):
        read_checkpoint(str(folder))


def test_a_gguf_file_may_be_one(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_text(POINTER)
    with pytest.raises(ConfigError, match=r"tiny\.gguf is a Git LFS pointer"):
        read_checkpoint(str(tmp_path / "tiny.gguf"))


@pytest.mark.parametrize("content", ['{"a": Infinity', '{"a": Infinity}{', '{"a": inf, "b": NaN}', "[NaN]", "NaN"])
def test_what_python_does_not_read_is_damaged(tmp_path: Path, content: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"config\.json is damaged"):
        read_json(path, dict[str, Any])


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json"])
def test_they_may_be_in_each_configuration_of_a_model(tmp_path: Path, name: str) -> None:
    folder = Path(write_tiny_model(tmp_path))
    expected = read_checkpoint(str(folder))
    document = json.loads((folder / name).read_text())
    odd = json.dumps(document | {"time_step_limit": [0.0, math.inf], "odd": math.nan, "text": "\ud83d"})
    (folder / name).write_text(odd.replace("NaN", "1e400"))
    assert read_checkpoint(str(folder)) == expected


def test_one_that_is_used_is_refused_by_name(tmp_path: Path) -> None:
    folder = Path(write_tiny_model(tmp_path, rms_norm_eps=math.nan))
    with pytest.raises(ConfigError, match="rms_norm_eps is nan; it must be a finite number"):
        read_checkpoint(str(folder))
