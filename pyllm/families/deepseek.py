"""DeepSeek V2 (arXiv 2405.04434), V3 and R1 (arXiv 2412.19437), Kimi K2 (arXiv 2507.20534), Youtu without experts,
Mistral Small 4, whose queries grow with their positions, and DeepSeek MoE (arXiv 2401.06066), with Llama's attention.
"""

from dataclasses import replace as replace_names
from typing import Any

from msgspec.structs import replace

from pyllm.families.config import Config
from pyllm.families.family import (
    GGUF_DEEPSEEK_EXPERTS,
    GGUF_SCORES,
    Family,
    GgufNames,
    num_layers,
    read_deepseek_routing,
    read_feed_forward,
    read_model,
    read_norm,
    with_deepseek_experts,
)
from pyllm.families.latents import (
    GGUF_LATENT_FIELDS,
    GGUF_LATENT_NAMES,
    LATENT_NAMES,
    complete_latent_attention,
    read_latent_attention,
)
from pyllm.families.llama import read as read_llama
from pyllm.families.mistral import query_scaling
from pyllm.families.rope import rope_parameters, with_rope_parameters
from pyllm.families.spec import LayerSpec, ModelSpec
from pyllm.families.tensor_names import GGUF_NAMES

_GLM_VOCABULARY = 154_880
GGUF_DEFAULTS: dict[str, Any] = {
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.0,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 0,
}
"""The values that llama.cpp takes where a file says nothing."""
_LATENTS = {
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}


# The default of transformers, for files without any.
_MISTRAL_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 128.0,
    "original_max_position_embeddings": 8192,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}


def read_dense(config: Config) -> ModelSpec:
    """The model with latent attention that a config.json describes, without its experts."""
    config = config.with_defaults(**_LATENTS)
    config.refuse_unless(rope_interleave=True, mlp_bias=False, moe_layer_freq=1)
    norm, (attention, rope) = read_norm(config), read_latent_attention(config)
    layer = LayerSpec(
        attention=attention, feed_forward=read_feed_forward(config), attention_norm=norm, feed_forward_norm=norm
    )
    return read_model(config, [layer] * num_layers(config), (rope,))


def read_moe(config: Config) -> ModelSpec:
    """The model that a config.json of DeepSeek MoE describes, whose router has no groups and computes no float32."""
    config = config.with_defaults(first_k_dense_replace=0, norm_topk_prob=False)
    config.refuse_unless(scoring_func="softmax", moe_layer_freq=1)
    dense = read_llama(config.without("num_local_experts"))
    return with_deepseek_experts(config, dense, replace(read_deepseek_routing(config, "softmax"), float32=False))


def _read_v2(config: Config) -> ModelSpec:
    config = config.with_defaults(
        n_routed_experts=64,
        n_shared_experts=2,
        moe_intermediate_size=1407,
        first_k_dense_replace=0,
        topk_method="greedy",
        norm_topk_prob=False,
    )
    config.refuse_unless(norm_topk_prob=False, scoring_func="softmax")
    match config.text("topk_method"):
        case "greedy":
            config = config.replaced(n_group=1, topk_group=1)
        case "group_limited_greedy":
            pass
        case method:
            raise config.error("topk_method", method, "greedy or group_limited_greedy")
    return with_deepseek_experts(config, read_dense(config), read_deepseek_routing(config, "softmax"))


def read_v3(config: Config) -> ModelSpec:
    """The model that a config.json of DeepSeek V3, R1 or Kimi K2 describes."""
    config = config.with_defaults(
        n_routed_experts=256,
        num_experts_per_tok=8,
        moe_intermediate_size=2048,
        n_group=8,
        topk_group=4,
        first_k_dense_replace=3,
        routed_scaling_factor=2.5,
    )
    config.refuse_unless(scoring_func="sigmoid", topk_method="noaux_tc")
    return with_deepseek_experts(config, read_dense(config))


def _read_youtu(config: Config) -> ModelSpec:
    return read_dense(config.with_defaults(tie_word_embeddings=True))


def _read_mistral(config: Config) -> ModelSpec:
    config = config.with_defaults(
        kv_lora_rank=256,
        q_lora_rank=1024,
        qk_nope_head_dim=64,
        n_routed_experts=128,
        num_experts_per_tok=4,
        moe_intermediate_size=2048,
    )
    config.refuse_unless(n_group=1, topk_group=1)
    if not len(rope_parameters(config)):
        config = config.replaced(rope_parameters=_MISTRAL_ROPE)
    config = with_rope_parameters(config, partial_rotary_factor=1.0)  # in files the rotary part of a query
    spec = with_deepseek_experts(config, read_dense(config), read_deepseek_routing(config, "softmax"))
    scaling = query_scaling(config)
    layers = (replace(layer, attention=replace(layer.own_attention, query_scaling=scaling)) for layer in spec.layers)
    return replace(spec, layers=tuple(layers))


_READERS = {
    "DeepseekV3ForCausalLM": read_v3,
    "KimiK25ForConditionalGeneration": read_v3,
    "DeepseekV2ForCausalLM": _read_v2,
    "YoutuForCausalLM": _read_youtu,
}


def read(config: Config) -> ModelSpec:
    """The model that a config.json describes."""
    return _READERS[config.items("architectures", 1)[0]](config)


def _complete(config: Config) -> Config:
    """Tell by its experts which of the models a file has, as all of them have one architecture there."""
    config = complete_latent_attention(config)
    if "num_local_experts" not in config:
        return config.replaced(architectures=["YoutuForCausalLM"])
    # GLM-4.7-Flash has no number of scores in its files; llama.cpp knows it by its vocabulary, too.
    scores = GGUF_SCORES["sigmoid" if config.equals("vocab_size", _GLM_VOCABULARY) else "softmax"]
    config = config.with_defaults(expert_gating_func=scores, **GGUF_DEFAULTS)
    if config.equals("expert_gating_func", GGUF_SCORES["sigmoid"]):
        return config
    method = "greedy" if config.equals("n_group", 1) else "group_limited_greedy"
    return config.replaced(architectures=["DeepseekV2ForCausalLM"], topk_method=method)


FAMILY = Family(
    architectures=tuple(_READERS),
    read=read,
    tensors=LATENT_NAMES,
    gguf=GgufNames(
        architectures=("deepseek2",),
        tensors=GGUF_LATENT_NAMES,
        fields=GGUF_DEEPSEEK_EXPERTS | GGUF_LATENT_FIELDS,
        complete=_complete,
    ),
)
MOE = Family(
    architectures=("DeepseekForCausalLM",),
    read=read_moe,
    gguf=GgufNames(
        architectures=("deepseek",),
        tensors=replace_names(GGUF_NAMES, interleaved=True),
        fields=GGUF_DEEPSEEK_EXPERTS,
    ),
)
MISTRAL4 = Family(
    architectures=("Mistral4ForCausalLM",),
    read=_read_mistral,
    tensors=LATENT_NAMES,
    gguf=GgufNames(
        architectures=("mistral4",),
        tensors=GGUF_LATENT_NAMES,
        fields=GGUF_DEEPSEEK_EXPERTS | GGUF_LATENT_FIELDS | {"attention.temperature_scale": "llama_4_scaling_beta"},
        complete=complete_latent_attention,
    ),
)
