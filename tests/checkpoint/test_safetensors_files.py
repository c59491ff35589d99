"""Which files of a folder are its model: with an index, without one, with one that is older than the files."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pyllm.checkpoint.hub_files import collect
from pyllm.checkpoint.model_name import parse_hub_name
from pyllm.checkpoint.reader import read_checkpoint
from pyllm.errors import ConfigError
from tests.tiny_model import write_tiny_model

INDEX = "model.safetensors.index.json"


def split(folder: Path, names: list[str]) -> Path:
    """A tiny model in files of these names, each with a part of its tensors."""
    write_tiny_model(folder)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    for number, name in enumerate(names):
        save_file({each: tensors[each] for each in sorted(tensors)[number :: len(names)]}, folder / name)
    return folder


def index(folder: Path, names: list[str]) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": {f"tensor {name}": name for name in names}}))


def parts(stem: str, total: int) -> list[str]:
    return [f"{stem}-{number:05}-of-{total:05}.safetensors" for number in range(1, total + 1)]


def read(folder: Path) -> list[str]:
    """The names of the files that are read, which hold the whole model."""
    whole = read_checkpoint(write_tiny_model(folder / "whole"))
    found = read_checkpoint(str(folder))
    assert found.fingerprint == whole.fingerprint
    return [Path(file).name for file in found.files]


@pytest.mark.parametrize(
    "names", [parts("model", 3), parts("other", 2), ["pytorch_model.safetensors"], ["a.safetensors", "b.safetensors"]]
)
@pytest.mark.parametrize("is_stale", [True, False])
def test_files_without_an_index_or_with_a_stale_one_are_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, names: list[str], is_stale: bool
) -> None:
    folder = split(tmp_path, names)
    if is_stale:
        index(folder, parts("model", 5))
    assert read(folder) == names
    assert (f"{INDEX} names files that are not there; reading {', '.join(names)}" in caplog.text) is is_stale


def test_a_whole_file_beside_a_stale_index_is_taken(tmp_path: Path) -> None:
    folder = split(tmp_path, ["model.safetensors"])
    index(folder, parts("model", 2))
    save_file({"x": np.zeros(1, np.float32)}, folder / parts("model", 2)[0])  # from a download that was given up
    assert read(folder) == ["model.safetensors"]


@pytest.mark.parametrize(
    "content", ['{"metadata": {"total_size": NaN}, "weight_map": {}}', "{", "[]", '{"weight_map": 4}']
)
def test_an_index_that_cannot_be_read_is_none(tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str) -> None:
    folder = split(tmp_path, parts("model", 2))
    (folder / f"._{parts('model', 2)[0]}").write_bytes(b"of macOS")
    (folder / INDEX).write_text(content)
    assert read(folder) == parts("model", 2)
    assert (f"{INDEX} is damaged: " in caplog.text) is ("NaN" not in content)
    (folder / parts("model", 2)[1]).unlink()
    with pytest.raises(ConfigError, match=r"it lacks model-00002-of-00002\.safetensors, and it has model-00001-of"):
        read_checkpoint(str(folder))


def test_an_index_with_nan_beside_its_files_decides(tmp_path: Path) -> None:
    folder = split(tmp_path, ["a.safetensors", "b.safetensors"])
    index(folder, ["a.safetensors", "b.safetensors"])
    (folder / INDEX).write_text((folder / INDEX).read_text().replace("{", '{"metadata": {"total_size": NaN}, ', 1))
    save_file({"x": np.zeros(1, np.float32)}, folder / "extra.safetensors")
    assert read(folder) == ["a.safetensors", "b.safetensors"]


def test_an_index_whose_files_are_there_decides(tmp_path: Path) -> None:
    folder = split(tmp_path, parts("model", 2))
    index(folder, parts("model", 2))
    save_file({"x": np.zeros(1, np.float32)}, folder / "extra.safetensors")
    assert read(folder) == parts("model", 2)


def test_an_index_that_lacks_parts_of_its_set_is_completed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = split(tmp_path, parts("model", 3))
    index(folder, parts("model", 3)[:2])
    assert read(folder) == parts("model", 3)
    assert f"{INDEX} lacks files; reading model-00001-of-00003.safetensors" in caplog.text


def test_a_missing_tensor_may_lie_in_a_file_that_is_not_read(tmp_path: Path) -> None:
    folder = split(tmp_path, ["a.safetensors", "b.safetensors"])
    index(folder, ["a.safetensors"])
    with pytest.raises(ConfigError, match=r"have no tensor .*; not read beside them: b\.safetensors"):
        read(folder)


def test_what_is_no_model_of_its_own_is_not_taken(tmp_path: Path) -> None:
    folder = split(tmp_path, parts("model", 2))
    for name in ("adapter_model.safetensors", "consolidated.safetensors"):
        save_file({"x": np.zeros(1, np.float32)}, folder / name)
    assert read(folder) == parts("model", 2)


@pytest.mark.parametrize("has_index", [True, False])
def test_a_missing_part_is_named_with_what_is_there(tmp_path: Path, has_index: bool) -> None:
    names = parts("model", 3)
    folder = split(tmp_path, names)
    if has_index:
        index(folder, names)
    (folder / names[1]).unlink()
    lacks = f"{INDEX} names" if has_index else "it lacks"
    text = rf"{lacks} {names[1]}, and it has {names[0]}, {names[2]}: download what is missing"
    with pytest.raises(ConfigError, match=text):
        read_checkpoint(str(folder))


def test_two_copies_are_refused(tmp_path: Path) -> None:
    folder = split(tmp_path, ["a.safetensors"])
    (folder / "b.safetensors").write_bytes((folder / "a.safetensors").read_bytes())
    with pytest.raises(ConfigError, match=r"is in a\.safetensors and in b\.safetensors: leave one copy"):
        read_checkpoint(str(folder))


def test_a_folder_of_other_weights_is_refused(tmp_path: Path) -> None:
    folder = split(tmp_path, [])
    (folder / "pytorch_model.bin").write_bytes(b"")
    text = (
        r"has no model\.safetensors; .* safetensors files only, and not from pytorch_model\.bin: a pickle may run code"
    )
    with pytest.raises(ConfigError, match=text):
        read_checkpoint(str(folder))


@pytest.mark.parametrize("names", [parts("model", 2), ["pytorch_model.safetensors"]])
def test_they_come_from_the_hub_too(names: list[str]) -> None:
    fetched: list[str] = []

    def get(name: str) -> Path:
        fetched.append(name)
        return Path(name)

    collect(parse_hub_name("a/b"), ["config.json", *names], get)
    assert fetched == ["config.json", *names, "config.json"]
