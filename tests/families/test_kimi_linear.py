"""Kimi Linear and LFM3 from the forms that published configurations have, against those of transformers."""

import json
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file
from transformers import KimiLinearConfig, Lfm3Config

from pyllm.checkpoint.reader import read_checkpoint
from pyllm.errors import ConfigError
from pyllm.families import kimi_linear, lfm2
from pyllm.families.config import Config, UnsupportedFeatureError
from pyllm.families.spec import GatedDeltaSpec, LayerSpec
from tests.families.tiny_families import write_tiny_family

PUBLISHED = {
    "architectures": ["KimiLinearForCausalLM"],
    "first_k_dense_replace": 1,
    "head_dim": 72,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "kv_lora_rank": 512,
    "linear_attn_config": {
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
        "head_dim": 128,
        "kda_layers": [*(layer for layer in range(1, 27) if layer % 4)],
        "num_heads": 32,
        "short_conv_kernel_size": 4,
    },
    "mla_use_nope": True,
    "model_max_length": 1_048_576,
    "moe_intermediate_size": 1024,
    "moe_layer_freq": 1,
    "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid",
    "num_attention_heads": 32,
    "num_expert_group": 1,
    "num_experts": 256,
    "num_experts_per_token": 8,
    "num_hidden_layers": 27,
    "num_key_value_heads": 32,
    "num_nextn_predict_layers": 0,
    "num_shared_experts": 1,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "routed_scaling_factor": 2.446,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "use_grouped_topk": True,
    "v_head_dim": 128,
    "vocab_size": 163_840,
}


def kinds(layers: tuple[LayerSpec, ...]) -> list[str]:
    return ["linear_attention" if layer.attention is None else "full_attention" for layer in layers]


def test_a_published_configuration() -> None:
    spec = kimi_linear.read(Config(PUBLISHED))
    assert kinds(spec.layers) == KimiLinearConfig(linear_attn_config=PUBLISHED["linear_attn_config"]).layer_types
    assert [layer.routing is not None for layer in spec.layers] == [False] + [True] * 26
    assert spec.max_position_embeddings == 1_048_576
    assert spec.ropes == ()
    recurrence, routing = spec.layers[0].recurrence, spec.layers[1].routing
    assert isinstance(recurrence, GatedDeltaSpec)
    assert (recurrence.value_heads, recurrence.key_size, recurrence.rank, recurrence.width) == (32, 128, 128, 4)
    assert recurrence.decays == 4096
    assert routing is not None
    assert (routing.experts, routing.active, routing.factor, routing.groups) == (256, 8, 2.446, None)
    assert {attention.rope for attention in spec.attentions} == {None}


def test_a_configuration_that_leaves_its_layers_to_the_defaults() -> None:
    without = {name: value for name, value in PUBLISHED.items() if name != "linear_attn_config"}
    assert kinds(kimi_linear.read(Config(without)).layers) == KimiLinearConfig().layer_types
    fields = {"hidden_size": 64, "num_hidden_layers": 9, "num_attention_heads": 4, "intermediate_size": 64}
    theirs = Lfm3Config(**fields, num_key_value_heads=2)
    config = {name: value for name, value in theirs.to_dict().items() if name not in ("layer_types", "rope_parameters")}
    spec = lfm2.read_lfm3(Config(config | {"architectures": ["Lfm3ForCausalLM"]}))
    windows = {"conv": None, "sliding_attention": 256, "full_attention": None}
    found = [None if layer.attention is None else layer.attention.window for layer in spec.layers]
    assert found == [windows[kind] for kind in theirs.layer_types]
    assert [layer.recurrence is not None for layer in spec.layers] == [kind == "conv" for kind in theirs.layer_types]


@pytest.mark.parametrize(
    ("field", "value"), [("mla_use_nope", False), ("moe_router_activation_func", "softmax"), ("moe_layer_freq", 2)]
)
def test_what_would_change_the_answer_is_refused(field: str, value: object) -> None:
    with pytest.raises(UnsupportedFeatureError, match=f"{field} = {value!r} is not supported"):
        kimi_linear.read(Config(PUBLISHED | {field: value}))


def test_a_bias_beside_gates_of_heads_is_refused() -> None:
    config = Lfm3Config(num_hidden_layers=3, attention_bias=True).to_dict()
    with pytest.raises(
        ConfigError, match="attention_bias is True; it must be false in a model with use_attention_gate"
    ):
        lfm2.read_lfm3(Config(config | {"architectures": ["Lfm3ForCausalLM"]}))


def test_dense_layers_have_the_names_of_published_files(tmp_path: Path) -> None:
    folder = Path(write_tiny_family(tmp_path, "kimi-linear-dense"))
    first = read_checkpoint(str(folder))
    tensors = load_file(folder / "model.safetensors")
    dense = {f"block_sparse_moe.{part}_proj": f"mlp.{part}_proj" for part in ("gate", "up", "down")}
    renamed = {}
    for name, tensor in tensors.items():
        part = next((part for part in dense if f"layers.1.{part}" in name or f"layers.3.{part}" in name), None)
        renamed[name if part is None else name.replace(part, dense[part])] = tensor
    assert json.loads((folder / "config.json").read_text())["mlp_layer_types"][1::2] == ["dense", "dense"]
    assert len(renamed.keys() - tensors.keys()) == 6
    save_file(renamed, folder / "model.safetensors")
    second = read_checkpoint(str(folder))
    assert [entry.name for entry in second.tensors] == [entry.name for entry in first.tensors]
