"""GGUF headers: what is understood, and that what is not is refused by its name."""

import json
from pathlib import Path
from typing import Any

import gguf
import msgspec
import pytest
from gguf import GGUFReader

from pyllm.checkpoint.gguf import read_gguf
from pyllm.checkpoint.reader import read_checkpoint
from pyllm.errors import ConfigError
from pyllm.families.spec import ModelSpec, NormSpec
from pyllm.families.tensors import TensorEntry
from tests.tiny_gguf import write_tiny_gguf
from tests.tiny_model import END, START, write_tiny_model

YARN = {"rope_type": "yarn", "factor": 4.0}


@pytest.fixture
def source(tmp_path: Path) -> str:
    return write_tiny_model(tmp_path / "tiny")


def test_it_describes_the_model_that_it_was_converted_from(tmp_path: Path, source: str) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(source, path)
    original, (converted, _) = read_checkpoint(source), read_gguf(path, "tokenizer")
    # A GGUF file has epsilons in float32.
    assert converted.spec.norm.epsilon == pytest.approx(original.spec.norm.epsilon)
    assert without_norms(converted.spec) == without_norms(original.spec)
    assert shapes(converted.tensors) == shapes(original.tensors)
    assert converted.tokenizer.path == "tokenizer"
    assert (converted.tokenizer.bos_token, converted.tokenizer.eos_token) == (START, END)
    assert converted.tokenizer.eos_token_ids == original.tokenizer.eos_token_ids


@pytest.mark.parametrize(
    ("fields", "ends"),
    [
        ({}, [257]),
        ({"tokenizer.ggml.eot_token_id": 5, "tokenizer.ggml.eom_token_id": 6}, [5, 6, 257]),
        ({"tokenizer.chat_template": "{{ content }}<|im_end|>"}, [257, 288]),
        ({"tokenizer.chat_template": "<|end|>, <|return|>", "tokenizer.ggml.eos_token_id": 5}, [5, 289]),
    ],
)
def test_an_answer_ends_where_the_file_or_its_chat_template_says(
    tmp_path: Path, source: str, fields: dict[str, object], ends: list[int]
) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(source, path)
    tokens = GGUFReader(path).fields["tokenizer.ggml.tokens"].contents()
    tokens[-2:] = ["<|im_end|>", "<|return|>"]
    write_tiny_gguf(source, path, fields={"tokenizer.ggml.tokens": tokens} | fields)
    assert read_gguf(path, "")[0].tokenizer.eos_token_ids == tuple(ends)
    other = msgspec.structs.replace(read_checkpoint(source).tokenizer, eos_token_ids=(), own_ends=())
    named = {
        fields.get(f"tokenizer.ggml.{name}_token_id", 257 if name == "eos" else -1) for name in ("eos", "eot", "eom")
    }
    assert read_gguf(path, other)[0].tokenizer.eos_token_ids == tuple(sorted(named - {-1}))


def without_norms(spec: ModelSpec) -> ModelSpec:
    layers = tuple(msgspec.structs.replace(layer, attention_norm=None, feed_forward_norm=None) for layer in spec.layers)
    return msgspec.structs.replace(spec, layers=layers, norm=NormSpec(epsilon=1.0))


def shapes(tensors: tuple[TensorEntry, ...]) -> dict[str, tuple[int, ...]]:
    return {entry.name: entry.shape for entry in tensors}


def test_tensors_are_found_where_the_file_has_them() -> None:
    checkpoint = read_checkpoint()
    reader = gguf.GGUFReader(checkpoint.files[0])
    sources = {entry.source.name: entry.source for entry in checkpoint.tensors}
    assert len(sources) == len(reader.tensors) == 272
    for tensor in reader.tensors:
        source = sources[tensor.name]
        assert (source.offset, source.num_bytes, source.type) == (
            tensor.data_offset,
            tensor.n_bytes,
            tensor.tensor_type.name,
        )
        assert source.shape == tuple(reversed(tensor.shape.tolist()))


@pytest.mark.parametrize(
    ("quantisation", "dtype"), [("F32", "float32"), ("F16", "float16"), ("BF16", "bfloat16"), ("Q8_0", "float32")]
)
def test_the_dtype_is_that_of_the_matrices(tmp_path: Path, quantisation: str, dtype: str) -> None:
    source = write_tiny_model(tmp_path / "tiny", hidden_size=64)
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(source, path, quantisation=gguf.GGMLQuantizationType[quantisation])
    assert read_gguf(path, "")[0].spec.dtype == dtype


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"general.architecture": "rwkv7"}, "'rwkv7' is not supported; supported: "),
        ({"llama.expert_count": 8}, "no field num_experts_per_tok"),
        ({"general.architecture": "gemma2", "gemma2.expert_count": 8}, "gemma2.expert_count = 8 is not supported"),
        ({"llama.rope.scaling.type": "twisted"}, "rope.scaling.type 'twisted' is not supported, only none, linear"),
        ({"llama.rope.dimension_count": 15}, "RoPE of 15 of a head's 16 dimensions"),
        ({"llama.attention.sliding_window": 4096}, "sliding_window = 4096"),
        ({"llama.attention.head_count": [6, 3]}, "head_count differs between layers"),
        ({"llama.attention.head_count_kv": [3, 6]}, "head_count_kv differs between layers"),
        ({"llama.attention.value_length": 8}, "attention.value_length = 8 is not supported, only 16"),
        ({"llama.rope.dimension_sections": [4, 2, 2, 0]}, "rope.dimension_sections, as models for images have them"),
        ({"llama.block_count": None}, "no field num_hidden_layers"),
        ({"llama.block_count": 1_000_000}, "num_hidden_layers is 1000000; it must be a whole number from 1 to 1024"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "rms_norm_eps is nan; it must be a finite number"),
        ({"tokenizer.ggml.model": "rwkv"}, "tokenizer.ggml.model 'rwkv' is not supported"),
        ({"tokenizer.ggml.pre": "unheard-of"}, "tokenizer.ggml.pre 'unheard-of' is not supported"),
        ({"tokenizer.ggml.merges": ["x yz"]}, r"merges \['x', 'yz'\]"),
        ({"tokenizer.ggml.tokens": None}, "lacks its tokens"),
        ({"split.count": 2}, r"one of 2 parts: name it as llama.cpp does, ...-00001-of-00002\.gguf"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    tmp_path: Path, source: str, fields: dict[str, Any], message: str
) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(source, path, fields=fields)
    with pytest.raises(ConfigError, match=message):
        read_gguf(path, "")


@pytest.mark.parametrize("index", [290, 2**32 - 1])
@pytest.mark.parametrize("name", ["eos", "bos", "eot", "unknown"])
def test_a_special_token_that_is_none_is_left_out(
    tmp_path: Path, source: str, caplog: pytest.LogCaptureFixture, name: str, index: int
) -> None:
    path = tmp_path / "tiny.gguf"
    template = {"tokenizer.chat_template": f"{{{{ content }}}}{END}", "tokenizer.ggml.add_bos_token": True}
    write_tiny_gguf(source, path, fields={f"tokenizer.ggml.{name}_token_id": index} | template)
    found = read_gguf(path, "")[0].tokenizer
    assert f"tokenizer.ggml.{name}_token_id is {index}, of 290 tokens: it is left out" in caplog.text
    assert found.eos_token_ids == (257,)  # which the template names, too
    assert (found.bos_token, found.eos_token) == ("" if name == "bos" else START, "" if name == "eos" else END)


def test_texts_that_are_not_utf8_are_replaced(tmp_path: Path, source: str, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(source, path, fields={"general.author": "Mxll", "general.tags": ["a", "Mxll"]})
    path.write_bytes(path.read_bytes().replace(b"Mxll", b"M\xfcll"))
    assert read_gguf(path, "")[0].tokenizer.eos_token == END
    for name in ("general.author", "general.tags"):
        assert f"1 texts in '{name}' are not UTF-8" in caplog.text


def test_tokens_of_bytes_that_are_not_utf8_stay_apart(
    tmp_path: Path, source: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(source, path)
    tokens = GGUFReader(path).fields["tokenizer.ggml.tokens"].contents()
    tokens[280:283] = ["xx1", "xx2", "xx3"]
    write_tiny_gguf(source, path, fields={"tokenizer.ggml.tokens": tokens})
    path.write_bytes(path.read_bytes().replace(b"xx1", b"a\xffb").replace(b"xx2", b"a\xfeb").replace(b"xx3", b"a\xfdb"))
    ids = msgspec.json.decode(read_gguf(path, "")[1])["model"]["vocab"]
    assert {ids["a\ufffdb"], ids["[a\ufffdb_281]"], ids["[a\ufffdb_282]"]} == {280, 281, 282}
    assert "3 texts in 'tokenizer.ggml.tokens' are not UTF-8" in caplog.text


def test_types_of_tokens_may_be_missing(tmp_path: Path, source: str) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(source, path)
    expected, content = read_gguf(path, "")
    write_tiny_gguf(source, path, fields={"tokenizer.ggml.token_type": None})
    found, other = read_gguf(path, "")
    assert found.tokenizer == expected.tokenizer
    specials = [token for token in json.loads(content)["added_tokens"] if token["content"] in (START, END)]
    assert [token for token in json.loads(other)["added_tokens"] if token["content"] in (START, END)] == specials


def test_a_tensor_of_an_unknown_feature_is_refused(tmp_path: Path, source: str) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(source, path, extra_tensors=("blk.0.ssm_conv1d.weight",))
    with pytest.raises(ConfigError, match=r"1 tensors belong to no layer of LlamaForCausalLM: blk\.0\.ssm_conv1d"):
        read_gguf(path, "")


def test_a_tensor_with_divisors_of_frequencies_is_part_of_the_configuration(tmp_path: Path, source: str) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(source, path, extra_tensors=("rope_freqs.weight",))  # of ones
    (converted, _), original = read_gguf(path, ""), read_checkpoint(source)
    assert converted.spec.ropes == original.spec.ropes
    write_tiny_gguf(source, path, extra_tensors=("rope_freqs.weight",), fields={"llama.rope.dimension_count": 12})
    with pytest.raises(ConfigError, match=r"factors is .*; it must be a list of 6 numbers"):
        read_gguf(path, "")


@pytest.mark.parametrize(
    ("own", "scaling"),
    [
        ({"rope.scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"rope.scale_linear": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"rope.scale_linear": 2.0, "rope.scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"rope.scale_linear": 2.0, "rope.scaling.type": "none"}, {}),
        ({"rope.scale_linear": 0.0}, {}),
        ({"rope.scaling.type": "linear"}, {}),
        ({"rope.scale_linear": 1.0, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}, YARN),
        ({"rope.scale_linear": 4.0, "rope.scaling.type": "yarn"}, YARN),
    ],
)
def test_rope_is_scaled_as_in_llama_cpp(
    tmp_path: Path, source: str, own: dict[str, Any], scaling: dict[str, Any]
) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(source, path, fields={f"llama.{name}": value for name, value in own.items()})
    expected = read_checkpoint(write_tiny_model(tmp_path / "scaled", rope_scaling=scaling)).spec.ropes
    assert read_gguf(path, "")[0].spec.ropes == expected


def test_a_type_that_cannot_be_dequantised_is_refused(tmp_path: Path, source: str) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(source, path)
    content = path.read_bytes()
    # In the tensor table a name is followed by the number of dimensions, here one, the dimension, and the type.
    place = content.index(b"output_norm.weight") + len(b"output_norm.weight") + 4 + 8
    path.write_bytes(content[:place] + (26).to_bytes(4, "little") + content[place + 4 :])  # I32
    with pytest.raises(ConfigError, match=r"'output_norm\.weight' has type I32, which is not supported"):
        read_gguf(path, "")


@pytest.mark.parametrize("length", [4, 24, 1000, 20_000])
def test_a_file_that_ends_early_is_refused(tmp_path: Path, source: str, length: int) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(source, path)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ConfigError, match="not a GGUF file that can be read"):
        read_gguf(path, "")
