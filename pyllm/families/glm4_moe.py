"""GLM-4.5 to 4.7 (arXiv 2508.06471): experts as in DeepSeek V3 after some dense layers, RoPE on half of each head; and
Solar Open: experts in every layer, RoPE on whole heads. GLM-4.7-Flash has DeepSeek's latent attention.
"""

from dataclasses import replace

from pyllm.families.config import Config
from pyllm.families.deepseek import read_dense
from pyllm.families.family import (
    GGUF_DEEPSEEK_EXPERTS,
    Family,
    GgufNames,
    num_layers,
    read_attention,
    read_feed_forward,
    read_model,
    read_norm,
    with_deepseek_experts,
    without_further_layers,
)
from pyllm.families.latents import LATENT_NAMES
from pyllm.families.spec import LayerSpec, ModelSpec
from pyllm.families.tensor_names import GGUF_NAMES, GGUF_PARTS


def read(config: Config) -> ModelSpec:
    """The model that a config.json of GLM-4.5 describes."""
    config = config.with_defaults(partial_rotary_factor=0.5, first_k_dense_replace=1, rms_norm_eps=1e-5)
    norm, bias = read_norm(config), config.flag("attention_bias", False)
    head_norm = norm if config.flag("use_qk_norm", False) else None
    layer = LayerSpec(
        attention=read_attention(config, bias=bias, query_key_norm=head_norm),
        feed_forward=read_feed_forward(config),
        attention_norm=norm,
        feed_forward_norm=norm,
    )
    return with_deepseek_experts(config, read_model(config, [layer] * num_layers(config)))


def _read_flash(config: Config) -> ModelSpec:
    config = config.with_defaults(
        n_routed_experts=64,
        num_experts_per_tok=4,
        moe_intermediate_size=1536,
        routed_scaling_factor=1.8,
        q_lora_rank=768,
        qk_nope_head_dim=192,
        v_head_dim=256,
        rms_norm_eps=1e-5,
        mlp_layer_types=["dense"] + ["sparse"] * (num_layers(config) - 1),
    )
    return with_deepseek_experts(config, read_dense(config))


def read_solar_open(config: Config) -> ModelSpec:
    """The model that a config.json of Solar Open describes."""
    return read(
        config.replaced(first_k_dense_replace=0, use_qk_norm=False).with_defaults(
            head_dim=128,
            intermediate_size=config.integer("moe_intermediate_size"),
            partial_rotary_factor=1.0,
            rope_theta=1_000_000.0,
        )
    )


def _complete(config: Config) -> Config:
    """Add the fields that a file of Solar Open leaves out."""
    size = config.integer("moe_intermediate_size")
    return without_further_layers(config.with_defaults(first_k_dense_replace=0, intermediate_size=size))


GLM4_MOE = Family(
    architectures=("Glm4MoeForCausalLM", "Glm4vMoeForConditionalGeneration"),
    read=read,
    gguf=GgufNames(
        architectures=("glm4moe",),
        tensors=replace(GGUF_NAMES, parts=GGUF_PARTS | {"feed_forward_norm": "post_attention_norm"}),
        fields=GGUF_DEEPSEEK_EXPERTS,
        complete=_complete,
    ),
)
FLASH = Family(architectures=("Glm4MoeLiteForCausalLM",), read=_read_flash, tensors=LATENT_NAMES)
SOLAR_OPEN = Family(architectures=("SolarOpenForCausalLM",), read=read_solar_open)
