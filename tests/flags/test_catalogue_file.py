"""The models of a catalogue, read from a file, a folder and the command line; errors name the model."""

from pathlib import Path

import pytest

from pyllm.config.catalogue_settings import CatalogueEntry, split_options
from pyllm.errors import ConfigError
from pyllm.flags.catalogue_file import catalogue_of, read_catalogue

FILE = """
models:
  small: small.gguf
  Qwen/Qwen3-0.6B:
  large:
    model: owner/large:Q4_K_M
    max-model-len: 4k
    tool_call_parser: hermes
    pinned: true
    ttl: 600
    tenants: [alice]
aliases:
  gpt-4o: large
  chat: {large: 95, small: 5}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "models.yaml"
    path.write_text(text)
    return path


def test_a_file_has_models_their_terms_and_aliases(tmp_path: Path) -> None:
    (tmp_path / "small.gguf").touch()
    catalogue = read_catalogue(written(tmp_path, FILE), {"max_num_seqs": 8, "max_model_len": 100})
    assert catalogue.entries == (
        CatalogueEntry(name="small", files=str(tmp_path / "small.gguf"), max_model_len=100),
        CatalogueEntry(name="Qwen/Qwen3-0.6B", files="Qwen/Qwen3-0.6B", max_model_len=100),
        # Its parser is no part of its files.
        CatalogueEntry(name="large", max_model_len=4000, pinned=True, ttl=600.0, tenants=("alice",)),
    )
    assert catalogue.options["small"]["model"] == str(tmp_path / "small.gguf")
    assert catalogue.options["Qwen/Qwen3-0.6B"]["model"] == "Qwen/Qwen3-0.6B"
    of_engine, of_server = split_options(catalogue.options["large"])
    assert of_engine == {
        "model": "owner/large:Q4_K_M",
        "max_model_len": 4000,
        "max_num_seqs": 8,
        "served_model_name": ("large",),
    }
    assert of_server == {"tool_call_parser": "hermes"}
    assert catalogue.aliases == {"gpt-4o": {"large": 1.0}, "chat": {"large": 95.0, "small": 5.0}}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("models: {}", "has no models"),
        ("models: [a]", "Expected `object`"),
        ("models: {a: {block-size: 0}}", "a: block_size is 0"),
        ("models: {a: {ttl: -1}}", "a: Expected `float`"),
        ("models: {a: [b]}", "a must be a model, or flags and values"),
        ("models: {a: b}\naliases: {x: c}", "the alias 'x' names 'c'"),
        ("models: {a: b}\naliases: {a: a}", "the alias 'a' is a model"),
        ("models: {a: b}\naliases: {x: {}}", "needs models with shares above 0"),
        ("models: {a: b}\nmodel: c", "unknown field `model`"),
        ("models: {a", "is not YAML"),
    ],
)
def test_what_is_wrong_in_a_file_is_said(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        read_catalogue(written(tmp_path, text), {})


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        ("mdoel: b", "a: unknown flag --mdoel: did you mean --model?"),
        ("port: 80", "a: unknown flag --port"),
        ("max-num-seqs: many", "a: --max-num-seqs"),
    ],
)
def test_a_wrong_flag_is_refused_as_on_a_command_line(
    tmp_path: Path, flags: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        read_catalogue(written(tmp_path, f"models: {{a: {{{flags}}}}}"), {})
    assert error in capsys.readouterr().err


def test_a_folder_has_one_model_in_each_file_and_folder(tmp_path: Path) -> None:
    for name in ("b.gguf", "a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "mmproj-b.gguf", "notes.txt"):
        (tmp_path / name).touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "config.json").touch()
    (tmp_path / "empty").mkdir()
    catalogue = read_catalogue(tmp_path, {})
    assert [entry.name for entry in catalogue.entries] == ["a", "b", "folder"]
    assert catalogue.options["a"]["model"] == str(tmp_path / "a-00001-of-00002.gguf")


def test_models_of_the_command_line_have_their_files_names(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    for path in (tmp_path / "a.gguf", tmp_path / "one" / "a.gguf"):
        path.touch()
    catalogue = catalogue_of([str(tmp_path / "a.gguf"), "owner/repo:Q4_0", "qwen3:4b"], {"max_num_seqs": 4})
    assert list(catalogue.options) == ["a", "owner/repo:Q4_0", "qwen3:4b"]
    assert catalogue.options["a"]["max_num_seqs"] == 4
    with pytest.raises(ConfigError, match="have one name, a"):
        catalogue_of([str(tmp_path / "a.gguf"), str(tmp_path / "one" / "a.gguf")], {})
