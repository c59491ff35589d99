"""What a `model` argument stands for."""

from pathlib import Path

import pytest

from pyllm.checkpoint.model_name import HubName, at_revision, parse_hub_name, parse_model, short_names
from pyllm.errors import ConfigError
from tests.checkpoint.short_names_on_hub import trouble_of

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


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("llama3.2", "bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M"),
        ("llama3.2:latest", "bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M"),
        ("qwen3:4b", "Qwen/Qwen3-4B-GGUF:Q4_K_M"),
        ("Qwen3:4B", "Qwen/Qwen3-4B-GGUF:Q4_K_M"),
        ("qwen3:4b-q8_0", "Qwen/Qwen3-4B-GGUF:Q8_0"),
        ("qwen3:30b-a3b", "Qwen/Qwen3-30B-A3B-GGUF:Q4_K_M"),
        ("smollm2:135m-fp16", "bartowski/SmolLM2-135M-Instruct-GGUF:F16"),
        ("gemma3:270m@v1", "ggml-org/gemma-3-270m-it-GGUF:Q8_0@v1"),
        ("gpt-oss", "ggml-org/gpt-oss-20b-GGUF"),
        ("nomic-embed-text:137m-v1.5-fp16", "nomic-ai/nomic-embed-text-v1.5-GGUF:F16"),
    ],
)
def test_a_short_name_is_a_model_of_the_hub(text: str, model: str) -> None:
    meant, name = parse_hub_name(model), parse_model(text)
    assert isinstance(name, HubName)
    assert name.text == text
    assert (name.repository, name.quantization) == (meant.repository, meant.quantization)
    assert (name.revision, name.has_revision, name.file) == (meant.revision, meant.has_revision, "")
    assert parse_hub_name(text) == name


@pytest.mark.parametrize("text", ["qwen3:5b", "qwen3:4b-large", "llama", "qwen3:", "qwen3:4b:q8_0", ":4b"])
def test_a_short_name_that_is_not_in_the_table_is_none(text: str) -> None:
    with pytest.raises(ConfigError, match="a short name such as qwen3:4b"):
        parse_model(text)


def test_a_folder_wins_over_a_short_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "qwen3:4b").mkdir()
    monkeypatch.chdir(tmp_path)
    assert parse_model("qwen3:4b") == tmp_path / "qwen3:4b"
    assert at_revision("llama3.2", "v1", "revision") == "llama3.2@v1"


def test_every_short_name_is_usable() -> None:
    names = short_names()
    assert len(set(names.values())) > 70
    for name, short in names.items():
        meant = parse_hub_name(short.model)
        assert meant.text == short.model  # no short name itself
        assert name == name.lower()
        assert name.count(":") == 1
        assert 10**7 < short.num_bytes < 10**11
    families = {name.partition(":")[0] for name in names}
    assert {name for name in families if f"{name}:latest" not in names} == set()


def test_the_check_of_the_table_finds_what_is_wrong() -> None:
    short = short_names()["qwen3:4b"]
    name = parse_hub_name(short.model)
    files = {"Qwen3-4B-Q4_K_M.gguf": short.num_bytes, "Qwen3-4B-Q8_0.gguf": 1}
    assert trouble_of(short, name, files.items()) == ""
    assert "has 1.25 GB" in trouble_of(short, name, (("Qwen3-4B-Q4_K_M.gguf", short.num_bytes // 2),))
    assert "has no Q4_K_M" in trouble_of(short, name, (("Qwen3-4B-Q8_0.gguf", 1),))
