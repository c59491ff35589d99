"""MPT (https://www.databricks.com/blog/mpt-7b): ALiBi, layer norms, no biases; some models clip queries and keys."""

import math
from dataclasses import replace

from msgspec.structs import replace as replace_struct

from pyllm.families.config import Config
from pyllm.families.family import (
    Family,
    GgufNames,
    alibi_slopes,
    num_layers,
    read_attention,
    read_feed_forward,
    read_model,
    read_norm,
)
from pyllm.families.spec import LayerSpec, ModelSpec
from pyllm.families.tensor_names import GGUF_NAMES, QUERY_KEY_VALUE, TensorNames


def read(config: Config) -> ModelSpec:
    """The model that a config.json of MPT describes; learned positions, biases and norms of queries are refused."""
    config.refuse_unless(no_bias=True)
    own = config.section("attn_config")
    own.refuse_unless(alibi=True, attn_type="multihead_attention", prefix_lm=False, qk_ln=False)
    config = config.renamed(
        hidden_size="d_model",
        num_hidden_layers="n_layers",
        num_attention_heads="n_heads",
        max_position_embeddings="max_seq_len",
        layer_norm_eps="layer_norm_epsilon",
    )
    config = config.with_defaults(tie_word_embeddings=True)
    config = config.replaced(
        intermediate_size=config.integer("expansion_ratio", 4) * config.integer("hidden_size"), hidden_act="gelu"
    )
    attention = read_attention(config, rope=None, clip=own.optional_positive("clip_qkv"))
    slopes = alibi_slopes(attention.heads, own.positive("alibi_bias_max", 8.0))
    scale = own.positive("softmax_scale", attention.scale)
    norm = read_norm(config, "layer_norm_eps", kind="layer")
    layer = LayerSpec(
        attention=replace_struct(attention, slopes=slopes, scale=scale),
        feed_forward=read_feed_forward(config, gated=False),
        attention_norm=norm,
        feed_forward_norm=norm,
    )
    return read_model(config, [layer] * num_layers(config), ropes=(), logit_scale=_logit_scale(config))


def _logit_scale(config: Config) -> float:
    if config.equals("logit_scale", "inv_sqrt_d_model"):
        return 1 / math.sqrt(config.integer("hidden_size"))
    return config.positive("logit_scale", 1.0)


def _complete(config: Config) -> Config:
    """A copy with the section that a config.json has; files have 0 where there is no ALiBi, and no limit."""
    greatest = config.number("alibi_bias_max", 0.0)
    own = {"alibi": greatest > 0, "alibi_bias_max": greatest or None, "clip_qkv": config.value("clip_qkv") or None}
    return config.replaced(attn_config=own)


FAMILY = Family(
    architectures=("MptForCausalLM",),
    read=read,
    tensors=TensorNames(
        roots=("transformer.", ""),
        embedding="wte",
        norm="norm_f",
        layer="blocks.{}.",
        parts={
            "attention_norm": "norm_1",
            "attention.output": "attn.out_proj",
            "feed_forward_norm": "norm_2",
            "feed_forward.up": "ffn.up_proj",
            "feed_forward.down": "ffn.down_proj",
        },
        stacked={"attn.Wqkv": QUERY_KEY_VALUE},
    ),
    gguf=GgufNames(
        architectures=("mpt",),
        tensors=replace(GGUF_NAMES, stacked={"attn_qkv": QUERY_KEY_VALUE}),
        fields={"attention.max_alibi_bias": "alibi_bias_max", "attention.clamp_kqv": "clip_qkv"},
        complete=_complete,
    ),
)
