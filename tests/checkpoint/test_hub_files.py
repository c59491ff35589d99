"""Which GGUF file of a repository a name means."""

from pathlib import Path

import pytest

from pyllm.checkpoint.hub_files import choose_gguf, collect, gguf_models, quantization_of
from pyllm.checkpoint.model_name import parse_hub_name
from pyllm.errors import ConfigError

FILES = (
    "README.md",
    "model-BF16.gguf",
    "model-IQ4_XS.gguf",
    "model-Q4_K_M.gguf",
    "model-UD-Q4_K_M.gguf",
    "model-UD-Q4_K_XL.gguf",
    "mmproj-F16.gguf",
    "Q8_0/model-Q8_0-00001-of-00002.gguf",
    "Q8_0/model-Q8_0-00002-of-00002.gguf",
)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("a/b", "model-Q4_K_M.gguf"),
        ("a/b:latest", "model-Q4_K_M.gguf"),
        ("a/b:q4_k_m", "model-Q4_K_M.gguf"),
        ("a/b:UD-Q4_K_M", "model-UD-Q4_K_M.gguf"),
        ("a/b:Q4_K_XL", "model-UD-Q4_K_XL.gguf"),
        ("a/b:BF16", "model-BF16.gguf"),
        ("a/b/MODEL-iq4_xs.gguf", "model-IQ4_XS.gguf"),
        ("a/b:Q8_0", "Q8_0/model-Q8_0-00001-of-00002.gguf"),
        ("a/b/Q8_0/model-Q8_0-00002-of-00002.gguf", "Q8_0/model-Q8_0-00001-of-00002.gguf"),
    ],
)
def test_a_name_means_one_file(name: str, file: str) -> None:
    assert choose_gguf(parse_hub_name(name), FILES) == file


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "a/b:F16",
            r"a/b has no F16; it has BF16, IQ4_XS, Q4_K_M, Q5_0, Q8_0, UD-Q4_K_M, UD-Q4_K_XL",
        ),  # neither BF16 nor mmproj
        ("a/b:Q4_XS", r"a/b has no Q4_XS"),
        ("a/b:Q5_0", r"one of several parts, of which m-Q5_0-00002-of-00003\.gguf are missing"),
        ("a/b/other.gguf", r"a/b has no other\.gguf; it has"),
    ],
)
def test_what_is_not_there_is_refused(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        choose_gguf(parse_hub_name(name), [*FILES, "m-Q5_0-00001-of-00003.gguf", "m-Q5_0-00003-of-00003.gguf"])


def test_all_parts_of_a_split_model_are_fetched() -> None:
    fetched: list[str] = []
    path = collect(parse_hub_name("a/b:Q8_0"), FILES, lambda file: Path(fetched.append(file) or file))
    assert fetched == ["Q8_0/model-Q8_0-00001-of-00002.gguf", "Q8_0/model-Q8_0-00002-of-00002.gguf"]
    assert str(path) == fetched[0]


def test_layers_after_pooling_are_fetched_with_a_model() -> None:
    layers = [f"{number}_Dense/{file}" for number in (2, 3) for file in ("config.json", "model.safetensors")]
    files = ["config.json", "model.safetensors", "modules.json", "1_Pooling/config.json", *layers]
    files.append("sentence_bert_config.json")
    fetched: list[str] = []
    collect(
        parse_hub_name("a/b"),
        [*files, "onnx/model.onnx", "2_Dense/pytorch_model.bin"],
        lambda file: Path(fetched.append(file) or file),
    )
    assert sorted(set(fetched)) == sorted(files)


def test_the_files_that_make_a_text_model_a_reranker_are_fetched() -> None:
    files = ["config.json", "model.safetensors", "modules.json", "1_LogitScore/config.json"]
    files += ["config_sentence_transformers.json", "chat_template.jinja", "additional_chat_templates/score.jinja"]
    fetched: list[str] = []
    collect(parse_hub_name("a/b"), [*files, "README.md"], lambda file: Path(fetched.append(file) or file))
    assert sorted(set(fetched)) == sorted(files)


def test_without_a_preferred_quantisation_the_first_whole_file_is_taken() -> None:
    name = parse_hub_name("a/b")
    assert choose_gguf(name, ["m-Q2_K-00001-of-00002.gguf", "m-Q6_K.gguf", "m-Q5_0.gguf"]) == "m-Q5_0.gguf"
    assert choose_gguf(name, ["m-F16.gguf", "m-Q8_0.gguf"]) == "m-Q8_0.gguf"


def test_names_that_leave_the_folder_are_no_files() -> None:
    assert gguf_models(["../a-Q8_0.gguf", "/a-Q8_0.gguf", "a/../../b.gguf", "ok.gguf"]) == ["ok.gguf"]


@pytest.mark.parametrize(
    ("file", "quantization"),
    [
        ("Qwen3-0.6B-Q8_0.gguf", "Q8_0"),
        ("tinyllama.Q4_K_M.gguf", "Q4_K_M"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("model.f16.gguf", "F16"),
        ("UD-IQ1_S/m-UD-IQ1_S-00001-of-00002.gguf", "UD-IQ1_S"),
        ("model.gguf", ""),
    ],
)
def test_quantisation_of_a_name(file: str, quantization: str) -> None:
    assert quantization_of(file) == quantization
