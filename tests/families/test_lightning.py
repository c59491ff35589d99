"""MiniMax-01, Ling and OLMo Hybrid from the forms that published configurations have."""

import pytest

from pyllm.errors import ConfigError
from pyllm.families import ling, ling_3, minimax_01, olmo_hybrid
from pyllm.families.config import Config, UnsupportedFeatureError
from pyllm.families.spec import GatedDeltaSpec, LightningSpec, ModelSpec
from pyllm.families.state_layout import state_bytes, state_shapes

MINIMAX = {
    "architectures": ["MiniMaxText01ForCausalLM"],
    "attn_type_list": [*[0] * 7, 1] * 10,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 6144,
    "intermediate_size": 9216,
    "layernorm_full_attention_alpha": 3.5565588200778455,
    "layernorm_full_attention_beta": 1.0,
    "layernorm_linear_attention_alpha": 3.5565588200778455,
    "layernorm_linear_attention_beta": 1.0,
    "layernorm_mlp_alpha": 3.5565588200778455,
    "layernorm_mlp_beta": 1.0,
    "max_position_embeddings": 10_240_000,
    "num_attention_heads": 64,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 80,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "postnorm": True,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10_000_000,
    "rotary_dim": 64,
    "shared_intermediate_size": 0,
    "tie_word_embeddings": False,
    "vocab_size": 200_064,
}
RING_MINI_LINEAR = {
    "architectures": ["BailingMoeLinearV2ForCausalLM"],
    "first_k_dense_replace": 1,
    "group_norm_size": 4,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "layer_group_size": 5,
    "linear_silu": False,
    "max_position_embeddings": 131_072,
    "moe_intermediate_size": 512,
    "moe_router_enable_expert_bias": True,
    "moe_shared_expert_intermediate_size": 512,
    "n_group": 8,
    "norm_topk_prob": True,
    "num_attention_heads": 16,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 20,
    "num_key_value_heads": 4,
    "num_shared_experts": 1,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1_000_000,
    "routed_scaling_factor": 2.5,
    "score_function": "sigmoid",
    "topk_group": 4,
    "use_bias": False,
    "use_qk_norm": True,
    "use_qkv_bias": False,
    "vocab_size": 157_184,
}
LING_3 = {
    "architectures": ["BailingMoeV3ForCausalLM"],
    "hidden_size": 2560,
    "intermediate_size": 6144,
    "head_dim": 128,
    "max_position_embeddings": 262_144,
    "num_attention_heads": 32,
    "num_hidden_layers": 42,
    "num_shared_experts": 1,
    "vocab_size": 157_184,
}
OLMO_HYBRID = {
    "architectures": ["OlmoHybridForCausalLM"],
    "hidden_size": 3840,
    "intermediate_size": 11_008,
    "max_position_embeddings": 65_536,
    "num_attention_heads": 30,
    "num_hidden_layers": 32,
    "rope_parameters": {"rope_theta": None, "rope_type": "default"},
    "vocab_size": 100_352,
}


def full_layers(spec: ModelSpec) -> list[int]:
    return [index for index, layer in enumerate(spec.layers) if layer.attention is not None]


def lightning(spec: ModelSpec, layer: int) -> LightningSpec:
    recurrence = spec.layers[layer].recurrence
    assert isinstance(recurrence, LightningSpec)
    return recurrence


def delta(spec: ModelSpec, layer: int) -> GatedDeltaSpec:
    recurrence = spec.layers[layer].recurrence
    assert isinstance(recurrence, GatedDeltaSpec)
    return recurrence


def test_minimax_01() -> None:
    spec = minimax_01.read(Config(MINIMAX))
    assert full_layers(spec) == list(range(7, 80, 8))
    assert spec.residual_multiplier == spec.layers[0].post_norm_factor == MINIMAX["layernorm_mlp_alpha"]
    assert spec.ropes[0].rotary_size == 64
    assert lightning(spec, 0).slopes[0] == pytest.approx(2 ** (-8 / 64) * (1 + 1e-5))
    assert lightning(spec, 78).slopes[63] == pytest.approx(2**-8 * (1 / 79 + 1e-5), rel=1e-4)


def test_a_state_without_a_convolution() -> None:
    spec = minimax_01.read(Config(MINIMAX))
    assert state_shapes(lightning(spec, 0), 4) == ((16, 128, 128),)
    assert state_bytes(spec, 1, range(8)) == 7 * 4 * 64 * 128 * 128


def test_ring_linear() -> None:
    spec = ling.read_ring_linear(Config(RING_MINI_LINEAR))
    assert full_layers(spec) == [4, 9, 14, 19]
    first, second = lightning(spec, 0), lightning(spec, 1)
    assert (first.heads, first.norm_groups, first.scale) == (16, 4, 128**-0.5)
    assert first.slopes[1] == pytest.approx(0.5 * (1 + 1 / 19 + 1e-5))
    assert second.slopes[1] == pytest.approx(0.5 * (1 + 1e-5))
    assert spec.attention.kv_heads == 4
    assert spec.ropes[0].rotary_size == 64


def test_layers_beyond_whole_groups_have_attention() -> None:
    spec = ling.read_ring_linear(Config(RING_MINI_LINEAR | {"num_hidden_layers": 22}))
    assert full_layers(spec) == [4, 9, 14, 19, 20, 21]


def test_ling_3() -> None:
    spec = ling_3.read(Config(LING_3))
    assert full_layers(spec) == [5, 11, 17, 23, 29, 35, 41]
    assert spec.attention.head_gate
    assert delta(spec, 0).strongest_decay == -5.0
    assert delta(spec, 0).rank is None
    assert [layer.routing is None for layer in spec.layers].count(True) == 2


def test_olmo_hybrid_has_no_positions() -> None:
    spec = olmo_hybrid.read(Config(OLMO_HYBRID))
    assert full_layers(spec) == list(range(3, 32, 4))
    assert (spec.ropes, spec.attention.rope) == ((), None)
    found = delta(spec, 0)
    assert (found.key_size, found.value_size, found.value_heads, found.greatest_share) == (96, 192, 30, 2.0)


@pytest.mark.parametrize(("field", "value"), [("postnorm", False), ("shared_intermediate_size", 512)])
def test_what_would_change_minimax_01_is_refused(field: str, value: object) -> None:
    with pytest.raises(UnsupportedFeatureError, match=f"{field} = {value!r} is not supported"):
        minimax_01.read(Config(MINIMAX | {field: value}))


@pytest.mark.parametrize(
    ("field", "value"),
    [("linear_silu", True), ("use_qkv_bias", True), ("score_function", "softmax"), ("linear_rope", False)],
)
def test_what_would_change_ring_linear_is_refused(field: str, value: object) -> None:
    with pytest.raises(UnsupportedFeatureError, match=f"{field} = {value!r} is not supported"):
        ling.read_ring_linear(Config(RING_MINI_LINEAR | {field: value}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_attention_heads": 48}, "num_attention_heads is 48; it must be a power of 2"),
        ({"attn_type_list": [2] * 80}, "attn_type_list is .*; it must be a list of 0 and 1"),
    ],
)
def test_wrong_fields(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        minimax_01.read(Config(MINIMAX | changes))
