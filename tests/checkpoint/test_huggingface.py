"""Hugging Face folders: what is understood, and that what is not is refused by its name."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from transformers import LlamaForCausalLM

from pyllm.checkpoint.reader import read_checkpoint
from pyllm.errors import ConfigError
from tests.tiny_model import CHAT_TEMPLATE, END, START, write_tiny_model


def edit(path: Path, **changes: Any) -> None:
    """Change fields of a JSON file; None removes one."""
    document = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in document.items() if value is not None}))


def test_it_describes_the_model(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(write_tiny_model(tmp_path / "tiny", tied=False))
    assert checkpoint.name == "tiny"
    assert checkpoint.format == "safetensors"
    architecture = checkpoint.architecture
    assert (architecture.num_attention_heads, architecture.num_key_value_heads, architecture.head_dim) == (6, 3, 16)
    assert (architecture.rope_theta, architecture.dtype, architecture.tie_word_embeddings) == (
        10000.0,
        "float32",
        False,
    )
    assert (checkpoint.tokenizer.bos_token, checkpoint.tokenizer.eos_token) == (START, END)
    assert checkpoint.tokenizer.eos_token_ids == (257,)
    assert checkpoint.tokenizer.chat_template == CHAT_TEMPLATE


@pytest.mark.parametrize("tied", [True, False])
def test_what_transformers_writes_is_understood(tmp_path: Path, tied: bool) -> None:
    folder = Path(write_tiny_model(tmp_path, tied=tied))
    expected = read_checkpoint(str(folder))
    oracle = LlamaForCausalLM.from_pretrained(str(folder))
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        (folder / name).unlink()
    oracle.save_pretrained(str(folder))
    found = read_checkpoint(str(folder))
    assert found.architecture == expected.architecture
    assert found.fingerprint == expected.fingerprint
    assert found.tokenizer == expected.tokenizer


def test_tensors_are_found_where_the_file_has_them(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(write_tiny_model(tmp_path))
    content = Path(checkpoint.files[0]).read_bytes()
    expected = load_file(checkpoint.files[0])
    assert {entry.name for entry in checkpoint.tensors} == expected.keys()
    for entry in checkpoint.tensors:
        found = np.frombuffer(content[entry.offset : entry.offset + entry.num_bytes], np.float32).reshape(entry.shape)
        np.testing.assert_array_equal(found, expected[entry.name])


def test_a_model_may_lie_in_several_files(tmp_path: Path) -> None:
    folder = Path(write_tiny_model(tmp_path))
    whole = read_checkpoint(str(folder))
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map = {name: f"part-{index % 2}.safetensors" for index, name in enumerate(tensors)}
    for part in ("part-0.safetensors", "part-1.safetensors"):
        save_file({name: tensors[name] for name in tensors if weight_map[name] == part}, folder / part)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    parts = read_checkpoint(str(folder))
    assert [Path(file).name for file in parts.files] == ["part-0.safetensors", "part-1.safetensors"]
    assert parts.fingerprint == whole.fingerprint


def test_defaults_of_older_files_are_filled_in(tmp_path: Path) -> None:
    folder = Path(write_tiny_model(tmp_path, hidden_size=96, kv_heads=6))
    edit(folder / "config.json", head_dim=None, num_key_value_heads=None, rope_theta=None, dtype=None, torch_dtype="x")
    architecture = read_checkpoint(str(folder)).architecture
    assert (architecture.head_dim, architecture.num_key_value_heads, architecture.rope_theta) == (16, 6, 10000.0)


def test_rope_theta_is_found_where_transformers_5_keeps_it(tmp_path: Path) -> None:
    folder = Path(write_tiny_model(tmp_path, rope_parameters={"rope_type": "default", "rope_theta": 5e5}))
    edit(folder / "config.json", rope_theta=None)
    assert read_checkpoint(str(folder)).architecture.rope_theta == 5e5


def test_what_follows_from_other_tensors_is_left_out(tmp_path: Path) -> None:
    folder = Path(write_tiny_model(tmp_path))
    tensors = load_file(folder / "model.safetensors")
    derived = {
        "lm_head.weight": tensors["model.embed_tokens.weight"],
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32),
    }
    save_file(tensors | derived, folder / "model.safetensors")
    assert {entry.name for entry in read_checkpoint(str(folder)).tensors} == tensors.keys()


def test_end_tokens_come_from_the_generation_config_and_the_tokenizer(tmp_path: Path) -> None:
    folder = Path(write_tiny_model(tmp_path))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    assert read_checkpoint(str(folder)).tokenizer.eos_token_ids == (7, 9, 257)
    (folder / "generation_config.json").unlink()
    edit(folder / "config.json", eos_token_id=11)
    assert read_checkpoint(str(folder)).tokenizer.eos_token_ids == (11, 257)


def test_a_template_that_is_no_text_is_a_clear_error(tmp_path: Path) -> None:
    folder = Path(write_tiny_model(tmp_path))
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe\xfd")
    with pytest.raises(ConfigError, match="cannot read the model"):
        read_checkpoint(str(folder))


def test_a_chat_template_may_be_a_file_or_one_of_several(tmp_path: Path) -> None:
    folder = Path(write_tiny_model(tmp_path))
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    edit(folder / "tokenizer_config.json", chat_template=named)
    assert read_checkpoint(str(folder)).tokenizer.chat_template == "plain"
    (folder / "chat_template.jinja").write_text("file")
    assert read_checkpoint(str(folder)).tokenizer.chat_template == "file"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "'GPT2LMHeadModel' is not supported; supported: LlamaForCausalLM"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_type = 'llama3' is not supported"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type = 'linear' is not supported"),
        ({"attention_bias": True}, "attention_bias = True is not supported"),
        ({"mlp_bias": True}, "mlp_bias = True is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu' is not supported, only 'silu'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
        ({"hidden_size": "large"}, r"Expected `int`, got `str` - at `\$.hidden_size`"),
        ({"vocab_size": None}, "missing required field `vocab_size`"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    folder = Path(write_tiny_model(tmp_path))
    edit(folder / "config.json", **changes)
    with pytest.raises(ConfigError, match=message):
        read_checkpoint(str(folder))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("config.json", r"cannot read .*config\.json"),
        ("model.safetensors", r"no model\.safetensors; weights are read from safetensors files only"),
        ("tokenizer.json", r"no tokenizer\.json"),
    ],
)
def test_a_missing_file_is_named(tmp_path: Path, name: str, message: str) -> None:
    folder = Path(write_tiny_model(tmp_path))
    (folder / name).unlink()
    with pytest.raises(ConfigError, match=message):
        read_checkpoint(str(folder))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "announces a header of 0|does not decode"),
        (b"\xff" * 64, "announces a header of"),
        ((16).to_bytes(8, "little") + b"{not json at all", "does not decode"),
        ((60).to_bytes(8, "little") + b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}     ', "to 16 of 0"),
        (
            (60).to_bytes(8, "little") + b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0, 1]}}     ' + b"x",
            "to 1 of 1",
        ),
        ((60).to_bytes(8, "little") + b'{"a":{"dtype":"I64","shape":[0],"data_offsets":[0, 0]}}     ', "has type I64"),
    ],
)
def test_a_damaged_file_of_weights_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    folder = Path(write_tiny_model(tmp_path))
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_checkpoint(str(folder))


def test_a_file_outside_the_folder_is_not_read(tmp_path: Path) -> None:
    folder = Path(write_tiny_model(tmp_path / "model"))
    outside = tmp_path / "outside.safetensors"
    (folder / "model.safetensors").rename(outside)
    weight_map = {"model.norm.weight": "../outside.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ConfigError, match=r"has no outside\.safetensors"):
        read_checkpoint(str(folder))
