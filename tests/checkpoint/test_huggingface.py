"""Hugging Face folders: what is understood, and that what is not is refused by its name."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyllm_kernels.tensors import numpy_dtype
from safetensors.numpy import load_file, save_file
from transformers import LlamaForCausalLM

from pyllm.checkpoint.reader import read_checkpoint
from pyllm.errors import ConfigError
from pyllm.families.transformers_probe import Probed, ProbeRequest
from tests.tiny_model import CHAT_TEMPLATE, END, START, write_tiny_model


def edit(path: Path, **changes: Any) -> None:
    """Change fields of a JSON file; None removes one."""
    document = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in document.items() if value is not None}))


def test_it_describes_the_model(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(write_tiny_model(tmp_path / "tiny", tied=False))
    assert checkpoint.name == "tiny"
    assert checkpoint.format == "safetensors"
    spec = checkpoint.spec
    assert (spec.attention.heads, spec.attention.kv_heads, spec.attention.head_size) == (6, 3, 16)
    assert (spec.dtype, spec.tie_word_embeddings) == ("float32", False)
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
    assert found.spec == expected.spec
    assert found.fingerprint == expected.fingerprint
    assert found.tokenizer == expected.tokenizer


def test_tensors_are_found_where_the_file_has_them(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(write_tiny_model(tmp_path))
    content = Path(checkpoint.files[0]).read_bytes()
    expected = load_file(checkpoint.files[0])
    assert {entry.source.name for entry in checkpoint.tensors} == expected.keys()
    for entry in checkpoint.tensors:
        source = entry.source
        part = content[source.offset : source.offset + source.num_bytes]
        np.testing.assert_array_equal(np.frombuffer(part, np.float32).reshape(source.shape), expected[source.name])


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
    spec = read_checkpoint(str(folder)).spec
    assert (spec.attention.head_size, spec.attention.kv_heads) == (16, 6)
    assert spec.ropes[0].inverse_frequencies[1] == pytest.approx(10_000 ** (-2 / 16))


def test_rope_theta_is_found_where_transformers_5_keeps_it(tmp_path: Path) -> None:
    folder = Path(write_tiny_model(tmp_path, rope_parameters={"rope_type": "default", "rope_theta": 5e5}))
    edit(folder / "config.json", rope_theta=None)
    frequencies = read_checkpoint(str(folder)).spec.ropes[0].inverse_frequencies
    assert frequencies[1] == pytest.approx(5e5 ** (-2 / 16))


def test_what_follows_from_other_tensors_is_left_out(tmp_path: Path) -> None:
    folder = Path(write_tiny_model(tmp_path))
    tensors = load_file(folder / "model.safetensors")
    derived = {
        "lm_head.weight": tensors["model.embed_tokens.weight"],
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32),
    }
    save_file(tensors | derived, folder / "model.safetensors")
    assert {entry.source.name for entry in read_checkpoint(str(folder)).tensors} == tensors.keys()


def write_head(folder: Path, head: np.ndarray, name: str = "lm_head.weight") -> None:
    save_file(load_file(folder / "model.safetensors") | {name: head}, folder / "model.safetensors")


def test_a_head_that_differs_from_the_embedding_is_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = Path(write_tiny_model(tmp_path, tied=True))
    head = load_file(folder / "model.safetensors")["model.embed_tokens.weight"].copy()
    head[-1, -1] += 1  # the last number of all
    write_head(folder, head)
    with caplog.at_level("WARNING"):
        checkpoint = read_checkpoint(str(folder))
    assert not checkpoint.spec.tie_word_embeddings
    assert "lm_head.weight" in {entry.source.name for entry in checkpoint.tensors}
    assert "lm_head.weight differs from model.embed_tokens.weight" in caplog.text
    edit(folder / "config.json", tie_word_embeddings=False)
    assert read_checkpoint(str(folder)).spec == checkpoint.spec


def test_a_head_of_another_type_is_used(tmp_path: Path) -> None:
    folder = Path(write_tiny_model(tmp_path, tied=True))
    write_head(folder, load_file(folder / "model.safetensors")["model.embed_tokens.weight"].astype(np.float16))
    assert not read_checkpoint(str(folder)).spec.tie_word_embeddings


ONES = np.ones((2, 48), np.float32)
LEFT_BY_TRAINING = {
    "score.weight": ONES,
    "model.score.weight": ONES.astype(np.uint16),
    "v_head.summary.weight": ONES,
    "rm_head.weight": ONES,
    "pooler.dense.bias": ONES.astype(np.float64),
    "model.layers.0.self_attn.bias": np.tril(np.ones((1, 1, 8, 8), bool)),
    "model.layers.0.self_attn.mask": np.ones(4, np.uint8),
    "model.layers.0.self_attn.q_proj.bias": np.zeros(96, np.float32),
    "model.layers.2.mlp.up_proj.weight": ONES,
    "model.num_batches_tracked": np.array([3]),
}


def test_what_training_leaves_in_files_is_skipped(tmp_path: Path) -> None:
    folder = Path(write_tiny_model(tmp_path))
    tensors = {name: tensor.astype(np.float16) for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(tensors, folder / "model.safetensors")
    expected = read_checkpoint(str(folder))
    derived = {
        "model.layers.0.self_attn.rotary_emb.cos_cached": ONES,
        "model.embed_tokens.position_ids": np.arange(5),
    }
    save_file(tensors | LEFT_BY_TRAINING | derived, folder / "model.safetensors")
    found = read_checkpoint(str(folder))
    assert (found.spec, found.fingerprint) == (expected.spec, expected.fingerprint)
    assert found.skipped == tuple(sorted(LEFT_BY_TRAINING))


def test_a_type_of_numbers_that_is_not_known_counts_only_where_it_is_needed(tmp_path: Path) -> None:
    folder = Path(write_tiny_model(tmp_path))
    tensors = load_file(folder / "model.safetensors")
    expected = read_checkpoint(str(folder))
    extra = {"score.weight": np.zeros((2, 48), numpy_dtype("float8_e5m2"))}
    save_file(tensors | extra, folder / "model.safetensors")
    assert read_checkpoint(str(folder)).fingerprint == expected.fingerprint
    for name in ("model.norm.weight", "model.layers.1.mlp.up_proj.weight"):
        save_file(tensors | {name: tensors[name].astype(numpy_dtype("float8_e5m2"))}, folder / "model.safetensors")
        with pytest.raises(ConfigError, match=rf"{name}' has type F8_E5M2, and its architecture needs F32, F16 and"):
            read_checkpoint(str(folder))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", "_orig_mod."),
        ("", "module._orig_mod."),
        ("", "_fsdp_wrapped_module."),
        ("", "pretrained_model."),
        ("layers.0.", "layers.0._checkpoint_wrapped_module."),
        ("layers.0.", "layers.0._fsdp_wrapped_module._checkpoint_wrapped_module."),
    ],
)
def test_wrappers_in_names_are_left_out(tmp_path: Path, old: str, new: str) -> None:
    folder = Path(write_tiny_model(tmp_path))
    expected, tensors = read_checkpoint(str(folder)), load_file(folder / "model.safetensors")
    wrapped = {name.replace(old, new, 1): tensor for name, tensor in tensors.items()}
    assert wrapped.keys() != tensors.keys()
    save_file(wrapped, folder / "model.safetensors")
    assert read_checkpoint(str(folder)).fingerprint == expected.fingerprint


def test_weights_may_be_of_64_bits(tmp_path: Path) -> None:
    folder = Path(write_tiny_model(tmp_path))
    tensors = load_file(folder / "model.safetensors")
    save_file({name: tensor.astype(np.float64) for name, tensor in tensors.items()}, folder / "model.safetensors")
    checkpoint = read_checkpoint(str(folder))
    assert checkpoint.spec.dtype == "float32"
    assert {entry.source.type for entry in checkpoint.tensors} == {"F64"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("model.norm.weight", "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"),
        ("self_attn.q_proj.weight", "self_attn.q_proj.base_layer.weight"),
        ("model.norm.weight", "model.norm.modules_to_save.default.weight"),
        ("model.", "base_model.model.model."),
    ],
)
def test_adapters_are_refused_with_the_reason(tmp_path: Path, old: str, new: str) -> None:
    folder = Path(write_tiny_model(tmp_path))
    tensors = load_file(folder / "model.safetensors")
    save_file({name.replace(old, new): tensor for name, tensor in tensors.items()}, folder / "model.safetensors")
    with pytest.raises(ConfigError, match=r"has \d+ tensors such as '.*', a LoRA adapter.*merge it into its"):
        read_checkpoint(str(folder))


def test_the_folder_of_an_adapter_is_refused(tmp_path: Path) -> None:
    folder = Path(write_tiny_model(tmp_path))
    (folder / "config.json").rename(folder / "adapter_config.json")
    with pytest.raises(ConfigError, match="is a LoRA adapter, which is not supported by itself"):
        read_checkpoint(str(folder))


def test_one_matrix_for_both_may_be_the_head(tmp_path: Path) -> None:
    folder = Path(write_tiny_model(tmp_path, tied=True))
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    save_file(tensors, folder / "model.safetensors")
    checkpoint = read_checkpoint(str(folder))
    assert checkpoint.spec.tie_word_embeddings
    assert (checkpoint.tensors[0].name, checkpoint.tensors[0].source.name) == ("embedding.weight", "lm_head.weight")
    save_file({name.removeprefix("model."): tensor for name, tensor in tensors.items()}, folder / "model.safetensors")
    assert read_checkpoint(str(folder)).tensors[0].source.name == "lm_head.weight"
    edit(folder / "config.json", tie_word_embeddings=False)
    with pytest.raises(ConfigError, match=r"no tensor 'embed_tokens\.weight', which its architecture needs"):
        read_checkpoint(str(folder))


def test_the_head_of_a_model_within_another_is_used(tmp_path: Path) -> None:
    folder = Path(write_tiny_model(tmp_path, tied=False))
    config = json.loads((folder / "config.json").read_text())
    text = config | {"architectures": None, "model_type": "ministral3", "tie_word_embeddings": False}
    outer = {"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3", "text_config": text}
    (folder / "config.json").write_text(json.dumps(outer | {"tie_word_embeddings": True}))
    checkpoint = read_checkpoint(str(folder))
    assert "lm_head.weight" in {entry.source.name for entry in checkpoint.tensors}


def test_end_tokens_come_from_the_generation_config_and_the_tokenizer(tmp_path: Path) -> None:
    folder = Path(write_tiny_model(tmp_path))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    assert read_checkpoint(str(folder)).tokenizer.eos_token_ids == (7, 9, 257)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [256, None, 9.0]}))
    assert read_checkpoint(str(folder)).tokenizer.eos_token_ids == (9, 256, 257)
    (folder / "generation_config.json").unlink()
    edit(folder / "config.json", eos_token_id=11)
    assert read_checkpoint(str(folder)).tokenizer.eos_token_ids == (11, 257)
    assert read_checkpoint(str(folder), overrides={"eos_token_id": [12, 290, -1]}).tokenizer.eos_token_ids == (12, 257)
    edit(folder / "config.json", eos_token_id=None, text_config={"eos_token_id": [13]})
    assert read_checkpoint(str(folder)).tokenizer.eos_token_ids == (13, 257)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": None}))
    assert read_checkpoint(str(folder)).tokenizer.eos_token_ids == (257,)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": "257"}))
    with pytest.raises(ConfigError, match=r"generation_config\.json: eos_token_id is '257'; it must be a whole number"):
        read_checkpoint(str(folder))


def test_end_tokens_are_the_models_whatever_the_tokenizer(tmp_path: Path) -> None:
    other, folder = write_tiny_model(tmp_path / "other"), Path(write_tiny_model(tmp_path / "tiny"))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [69]}))
    assert read_checkpoint(str(folder), tokenizer=other).tokenizer.eos_token_ids == (69, 257)
    assert read_checkpoint(other, tokenizer=str(folder)).tokenizer.eos_token_ids == (257,)
    (folder / "model.safetensors").unlink()
    dummy = read_checkpoint(str(folder), tokenizer=other, has_dummy_weights=True)
    assert dummy.tokenizer.eos_token_ids == (69, 257)


def test_a_chat_template_may_be_a_file_or_one_of_several(tmp_path: Path) -> None:
    folder = Path(write_tiny_model(tmp_path))
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    edit(folder / "tokenizer_config.json", chat_template=named)
    assert read_checkpoint(str(folder)).tokenizer.chat_template == "plain"
    assert read_checkpoint(str(folder)).tokenizer.tool_chat_template == "tools"
    (folder / "chat_template.jinja").write_text("file")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates/tool_use.jinja").write_text("file for tools")
    tokenizer = read_checkpoint(str(folder)).tokenizer
    assert (tokenizer.chat_template, tokenizer.tool_chat_template) == ("file", "file for tools")


def test_a_chat_template_that_a_processor_has_saved_is_the_last_choice(tmp_path: Path) -> None:
    folder = Path(write_tiny_model(tmp_path))
    saved, options = folder / "chat_template.json", folder / "tokenizer_config.json"
    saved.write_text(json.dumps({"chat_template": "saved"}))
    assert read_checkpoint(str(folder)).tokenizer.chat_template == CHAT_TEMPLATE
    edit(options, chat_template=None)
    assert read_checkpoint(str(folder)).tokenizer.chat_template == "saved"
    saved.write_text(json.dumps({"chat_template": [{"name": "default", "template": "one of several"}]}))
    assert read_checkpoint(str(folder)).tokenizer.chat_template == "one of several"
    (folder / "chat_template.jinja").write_text("file")
    assert read_checkpoint(str(folder)).tokenizer.chat_template == "file"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["RwkvForCausalLM"]}, "'RwkvForCausalLM' is not supported; supported: "),
        ({"architectures": None, "model_type": "x"}, "names no architecture, and none of its model_type 'x' is known"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "has no field low_freq_factor"),
        ({"rope_scaling": {"type": "twisted", "factor": 2.0}}, "rope_type 'twisted' is not supported, only default"),
        ({"rope_theta": 1e300}, r"rope_theta is 1e\+300; it must be a number above 1 and below 1e\+20"),
        ({"attention_bias": True}, r"no tensor 'model\.layers\.0\.self_attn\.q_proj\.bias', which its architecture"),
        ({"mlp_bias": True}, r"no tensor 'model\.layers\.0\.mlp\.gate_proj\.bias', which its architecture needs"),
        ({"hidden_act": "mish"}, "hidden_act is 'mish'; it must be one of silu, swish, gelu,"),
        ({"partial_rotary_factor": 0.32}, "RoPE of 5 of a head's 16 dimensions is not supported"),
        ({"num_key_value_heads": 4}, "num_key_value_heads is 4; it must be a divisor of num_attention_heads, 6"),
        (
            {"quantization_config": {"quant_method": "bitsandbytes"}},
            "has method 'bitsandbytes'; supported are",
        ),
        ({"hidden_size": "large"}, "hidden_size is 'large'; it must be a whole number"),
        ({"hidden_size": 64}, r"'model\.embed_tokens\.weight' has the shape \(290, 48\), .* needs \(290, 64\)"),
        ({"vocab_size": None}, "no field vocab_size"),
        ({"num_hidden_layers": 3}, r"no tensor 'model\.layers\.2\."),
    ],
)
def test_what_is_not_supported_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    folder = Path(write_tiny_model(tmp_path))
    edit(folder / "config.json", **changes)
    with pytest.raises(ConfigError, match=message):
        read_checkpoint(str(folder))


def test_what_a_family_does_not_compute_is_asked_of_transformers(tmp_path: Path) -> None:
    folder = Path(write_tiny_model(tmp_path))
    edit(folder / "config.json", sliding_window=16)

    def probe(request: ProbeRequest) -> Probed:
        raise ConfigError(f"transformers is asked about {json.loads(request.config)['sliding_window']}")

    with pytest.raises(ConfigError, match="transformers is asked about 16"):
        read_checkpoint(str(folder), probe=probe)
    for arguments in ({}, {"probe": probe, "implementation": "native"}):
        with pytest.raises(ConfigError, match="sliding_window = 16 is not supported, only None"):
            read_checkpoint(str(folder), **arguments)


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


def test_pickled_weights_are_refused_with_what_to_do(tmp_path: Path) -> None:
    folder = Path(write_tiny_model(tmp_path))
    (folder / "model.safetensors").rename(folder / "pytorch_model-00001-of-00002.bin")
    with pytest.raises(ConfigError, match=r"and not from pytorch_model-00001-of-00002\.bin: .* convert"):
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
        (
            (60).to_bytes(8, "little") + b'{"a":{"dtype":"I64","shape":[0],"data_offsets":[0, 0]}}     ',
            "have no tensor",
        ),
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
    with pytest.raises(ConfigError, match=r"'\.\./outside\.safetensors' is no safetensors file beside it"):
        read_checkpoint(str(folder))


def test_entries_of_the_configuration_may_be_replaced(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "tiny")
    spec = read_checkpoint(folder, overrides={"max_position_embeddings": 77}).spec
    assert spec.max_position_embeddings == 77 != read_checkpoint(folder).spec.max_position_embeddings
    with pytest.raises(ConfigError, match="hf_overrides are for config"):
        read_checkpoint(overrides={"max_position_embeddings": 77})
    embedding = read_checkpoint(folder, overrides={"matryoshka_dimensions": [16]}).embedding
    assert (embedding.is_matryoshka, embedding.dimensions) == (True, (16,))
    with pytest.raises(ConfigError, match=r"config\.json: Expected .* `\$\.matryoshka_dimensions`"):
        read_checkpoint(folder, overrides={"matryoshka_dimensions": 16})
