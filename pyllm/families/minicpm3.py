"""MiniCPM 3 (arXiv 2404.06395): latent attention without experts; embedding, residual stream and logits are scaled."""

from dataclasses import replace
from math import sqrt

from pyllm.families.config import Config
from pyllm.families.family import Family, GgufNames, num_layers, read_feed_forward, read_model, read_norm
from pyllm.families.latents import (
    GGUF_LATENT_FIELDS,
    GGUF_LATENT_NAMES,
    LATENT_NAMES,
    read_latent_attention,
)
from pyllm.families.spec import LayerSpec, ModelSpec


def read(config: Config) -> ModelSpec:
    """The model that a config.json of MiniCPM 3 describes."""
    hidden, layers = config.integer("hidden_size"), num_layers(config)
    config = config.with_defaults(
        v_head_dim=hidden // config.integer("num_attention_heads"),
        kv_lora_rank=256,
        q_lora_rank=768,
        qk_nope_head_dim=64,
        qk_rope_head_dim=32,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        scale_emb=12,
        scale_depth=1.4,
        dim_model_base=256,
    )
    config.refuse_unless(mlp_bias=False)
    norm, (attention, rope) = read_norm(config), read_latent_attention(config)
    layer = LayerSpec(
        attention=attention, feed_forward=read_feed_forward(config), attention_norm=norm, feed_forward_norm=norm
    )
    return read_model(
        config,
        [layer] * layers,
        (rope,),
        embedding_scale=config.positive("scale_emb"),
        residual_multiplier=config.positive("scale_depth", sqrt(layers)) / sqrt(layers),
        logit_scale=config.integer("dim_model_base", hidden) / hidden,
    )


def _complete(config: Config) -> Config:
    size = config.integer("head_dim") - config.integer("qk_rope_head_dim")
    return config.without("partial_rotary_factor").replaced(qk_nope_head_dim=size)


FAMILY = Family(
    architectures=("MiniCPM3ForCausalLM",),
    read=read,
    tensors=replace(LATENT_NAMES, interleaved=False),
    gguf=GgufNames(
        architectures=("minicpm3",),
        tensors=replace(GGUF_LATENT_NAMES, interleaved=False),
        fields=GGUF_LATENT_FIELDS,
        complete=_complete,
    ),
)
