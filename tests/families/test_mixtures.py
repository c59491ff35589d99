"""Families of experts: fields of released configurations that no tiny model has, and refusals by name."""

from typing import Any

import pytest

from pyllm.errors import ConfigError
from pyllm.families import dots1, ernie, glm4_moe, hunyuan, llama4, minimax_m2, phimoe
from pyllm.families.config import Config
from pyllm.families.family import Family
from pyllm.families.spec import ModelSpec, QueryScaling
from pyllm.families.text_models import text_model

SIZES = {
    "vocab_size": 100,
    "hidden_size": 512,
    "intermediate_size": 256,
    "moe_intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32_768,
}
DEEPSEEK = {"n_routed_experts": 12, "num_experts_per_tok": 3, "n_shared_experts": 1}
HUNYUAN = {"num_experts": 8, "moe_topk": 2, "moe_intermediate_size": 256}
PHIMOE = {"rope_type": "longrope", "short_factor": [1.0] * 64, "long_factor": [2.0] * 64}


def read(family: Family, **fields: Any) -> ModelSpec:
    return family.read(Config(SIZES | {"architectures": [family.architectures[0]]} | fields))


def test_hunyuan_has_the_same_numbers_for_all_layers() -> None:
    rope = {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}
    lists = {"moe_topk": [2] * 4, "moe_intermediate_size": [256] * 4, "num_shared_expert": [1] * 4}
    spec = read(hunyuan.HUNYUAN_MOE, **HUNYUAN | lists, rope_scaling=rope, rope_theta=10_000.0)
    routing = spec.layers[0].feed_forward.routing
    assert (routing.experts, routing.active, routing.shared.size) == (8, 2, 256)
    assert spec.max_position_embeddings == 32_768
    # The last frequency is 1 / base ** (126 / 128).
    assert spec.ropes[0].inverse_frequencies[-1] == pytest.approx((10_000 * 1000 ** (128 / 126)) ** (-126 / 128))


def test_minimax_m2_says_how_many_dimensions_rotate() -> None:
    spec = read(minimax_m2.FAMILY, num_local_experts=8, num_experts_per_tok=2, head_dim=128, rotary_dim=64)
    assert spec.ropes[0].rotary_size == 64


def test_llama4_ends_with_its_first_chunk() -> None:
    llama3 = {"rope_type": "llama3", "factor": 16.0, "original_max_position_embeddings": 8192}
    rope = llama3 | {"low_freq_factor": 1.0, "high_freq_factor": 1.0}
    text = {name: value for name, value in SIZES.items() if name != "moe_intermediate_size"}
    fields = {"text_config": text | {"rope_scaling": rope}, "architectures": ["Llama4ForConditionalGeneration"]}
    spec = llama4.FAMILY.read(text_model(Config(fields)))
    assert spec.max_position_embeddings == 8192
    assert [attention.rope for attention in spec.attentions] == [0, 0, 0, None]
    assert spec.query_scaling == QueryScaling(beta=0.1, original_length=8192, first=1)
    whole = read(llama4.FAMILY, no_rope_layers=[0] * 4)
    assert whole.max_position_embeddings == 32_768


@pytest.mark.parametrize(
    ("family", "fields", "message"),
    [
        (
            glm4_moe.GLM4_MOE,
            DEEPSEEK | {"n_group": 5},
            "n_group is 5; it must be a number of groups of 2 or more of 12",
        ),
        (glm4_moe.GLM4_MOE, DEEPSEEK | {"n_group": 12}, "n_group is 12; it must be a number of groups of 2 or more"),
        (
            glm4_moe.GLM4_MOE,
            DEEPSEEK | {"n_group": 6, "topk_group": 1},
            "topk_group is 1; it must be at most 6, with 3",
        ),
        (
            glm4_moe.GLM4_MOE,
            DEEPSEEK | {"n_group": 2, "topk_group": 3},
            "topk_group is 3; it must be at most 2, with 3",
        ),
        (dots1.FAMILY, DEEPSEEK | {"expert_gating_func": 1}, "expert_gating_func = 1 is not supported, only 2"),
        (dots1.FAMILY, DEEPSEEK | {"num_experts_per_tok": 13}, "num_experts_per_tok is 13; it must be at most n_rout"),
        (ernie.ERNIE_MOE, {"use_bias": True}, "use_bias = True is not supported, only False"),
        (hunyuan.HUNYUAN_MOE, HUNYUAN | {"moe_topk": [1, 2, 2, 2]}, "moe_topk is .*; it must be the same number for"),
        (hunyuan.HUNYUAN_MOE, HUNYUAN | {"moe_intermediate_size": 64}, "moe_intermediate_size = 64 is not supported"),
        (hunyuan.HUNYUAN_MOE, HUNYUAN | {"num_shared_expert": 2}, "num_shared_expert = 2 is not supported, only 1"),
        (hunyuan.HUNYUAN, {"use_cla": True}, "use_cla = True is not supported, only False"),
        (llama4.FAMILY, {"layer_types": ["full_attention"] * 4}, r"layer_types = \['full_attention', .* is not supp"),
        (llama4.FAMILY, {"no_rope_layers": [1, 0]}, r"no_rope_layers is \[1, 0\]; it must be a list of 4 items"),
        (
            hunyuan.HY_V3,
            {"num_experts": 8, "num_experts_per_tok": 2, "mlp_layer_types": ["dense", "sparse", "thin", "sparse"]},
            "mlp_layer_types is .*; it must be dense or sparse for each of 4 layers",
        ),
        (phimoe.FAMILY, {"num_experts_per_tok": 1}, "num_experts_per_tok = 1 is not supported, only 2"),
        (
            phimoe.FAMILY,
            {"rope_scaling": PHIMOE | {"short_mscale": 1.2, "long_mscale": 1.3}},
            "long_mscale = 1.3 is not supported, only 1.2",
        ),
    ],
)
def test_what_is_not_supported_is_named(family: Family, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(family, **fields)
