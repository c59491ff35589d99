"""What a `model` argument stands for."""

from pathlib import Path

import pytest

from pyllm.checkpoint.model_name import HubName, at_revision, parse_hub_name, parse_model
from pyllm.errors import ConfigError

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("text", "repository", "revision", "quantization", "file"),
    [
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B", "main", "", ""),
        ("o/r@v1.0", "o/r", "v1.0", "", ""),
        (f"o/r@{COMMIT}", "o/r", COMMIT, "", ""),
        ("o/r@refs/pr/1", "o/r", "refs/pr/1", "", ""),
        ("o/r:Q4_K_M", "o/r", "main", "Q4_K_M", ""),
        ("o/r:latest", "o/r", "main", "", ""),
        ("o/r:Q8_0@v1", "o/r", "v1", "Q8_0", ""),
        ("o/r@v1:Q8_0", "o/r", "v1", "Q8_0", ""),
        ("o/r/a/b.gguf", "o/r", "main", "", "a/b.gguf"),
        ("o/r/b.gguf@v1", "o/r", "v1", "", "b.gguf"),
        ("hf.co/o/r:Q4_K_M", "o/r", "main", "Q4_K_M", ""),
        ("huggingface.co/o/r", "o/r", "main", "", ""),
        ("https://huggingface.co/o/r/", "o/r", "main", "", ""),
        ("https://huggingface.co/o/r/tree/v1", "o/r", "v1", "", ""),
        ("https://huggingface.co/o/r/blob/main/b.gguf", "o/r", "main", "", "b.gguf"),
        ("https://huggingface.co/o/r/resolve/main/x/b.gguf?download=true", "o/r", "main", "", "x/b.gguf"),
    ],
)
def test_a_name_of_the_hub(text: str, repository: str, revision: str, quantization: str, file: str) -> None:
    name = parse_model(text)
    assert isinstance(name, HubName)
    assert (name.text, name.repository, name.revision) == (text, repository, revision)
    assert (name.quantization, name.file) == (quantization, file)


@pytest.mark.parametrize("text", ["/no/model", "./o/r", "../o/r", "~/r", "/o", ".", ".."])
def test_what_looks_like_a_path_is_one(text: str) -> None:
    assert parse_model(text) == Path(text).expanduser().absolute()


def test_a_path_that_exists_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "o/r").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert parse_model("o/r") == tmp_path / "o/r"


@pytest.mark.parametrize(
    "text",
    [
        *("model", "model.gguf", "models/model.gguf", "o/r/config.json", "o/r/", "o//r", "o/..", "o/r..s", "-o/r"),
        *("o/r@", "o/r:", "o/r@a@b", "o/r:a:b", "o/r@../../x", "o/r/../x.gguf", "o/r/x.gguf:Q8_0", "o/r/s"),
        *("https://example.com/o/r", "hf.co/r", "o/r\n", "ö/r", "o/r:a b"),
    ],
)
def test_anything_else_is_refused_with_what_would_do(text: str) -> None:
    with pytest.raises(ConfigError, match=r"(?s)no model at .*GGUF file.*owner/repo:Q4_K_M"):
        parse_model(text)


def test_a_revision_joins_the_name() -> None:
    assert at_revision("me/tiny", "", "revision") == "me/tiny"
    assert at_revision("me/tiny:Q4_K_M", "v1", "revision") == "me/tiny:Q4_K_M@v1"
    assert at_revision("me/tiny@v1", "v1", "revision") == "me/tiny@v1"
    name = parse_hub_name(at_revision("me/tiny:Q4_K_M", "v1", "revision"))
    assert (name.revision, name.quantization) == ("v1", "Q4_K_M")


@pytest.mark.parametrize("text", ["", "/nowhere/model.gguf", "me/tiny@v2"])
def test_a_revision_is_of_a_model_of_the_hub(text: str) -> None:
    with pytest.raises(ConfigError, match="revision"):
        at_revision(text, "v1", "revision")
