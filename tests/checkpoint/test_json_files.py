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


def test_infinity_and_nan_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"time_step_limit": [0.0, Infinity], "low": -Infinity, "none": NaN, "text": "Infinity"}')
    found = read_json(path, dict[str, Any])
    assert found["time_step_limit"] == [0.0, math.inf]
    assert (found["low"], found["text"]) == (-math.inf, "Infinity")
    assert math.isnan(found["none"])


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
    (folder / name).write_text(json.dumps(document | {"time_step_limit": [0.0, math.inf], "odd": math.nan}))
    assert read_checkpoint(str(folder)) == expected


def test_one_that_is_used_is_refused_by_name(tmp_path: Path) -> None:
    folder = Path(write_tiny_model(tmp_path, rms_norm_eps=math.nan))
    with pytest.raises(ConfigError, match="rms_norm_eps is nan; it must be a finite number"):
        read_checkpoint(str(folder))
