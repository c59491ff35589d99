"""Falcon 7B, 40B, 180B and Falcon 2 (arXiv 2311.16867): parallel layers with one or two layer norms.

Falcon RW (arXiv 2306.01116) has ALiBi, and its layers are not parallel.
"""

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
from pyllm.families.tensor_names import GGUF_NAMES, GGUF_PARTS, QUERY_KEY_VALUE, TensorNames


def read(config: Config) -> ModelSpec:
    """The model that a config.json of Falcon describes."""
    config = config.renamed(hidden_size="n_embed")
    if "num_kv_heads" in config:
        config = config.replaced(num_key_value_heads=config.integer("num_kv_heads"))
    own_size = config.optional_integer("ffn_hidden_size") or config.optional_integer("intermediate_size")
    config = config.replaced(intermediate_size=own_size or 4 * config.integer("hidden_size"))
    config = config.with_defaults(max_position_embeddings=2048, tie_word_embeddings=True, activation="gelu")
    is_new = config.flag("new_decoder_architecture", False)
    if not is_new and config.flag("multi_query", True):
        config = config.replaced(num_key_value_heads=1)
    bias, norm = config.flag("bias", False), read_norm(config, "layer_norm_epsilon", kind="layer", bias=True)
    is_parallel = is_new or config.flag("parallel_attn", True)
    has_two_norms = not is_parallel or (is_new and config.integer("num_ln_in_parallel_attn", 2) == 2)
    attention, ropes = read_attention(config, bias=bias, output_bias=bias), None
    if config.flag("alibi", False):
        # Scores are scaled after the slopes. transformers rounds each product of a slope and a position to bfloat16.
        slopes = tuple(attention.scale * slope for slope in alibi_slopes(attention.heads))
        attention, ropes = replace_struct(attention, rope=None, slopes=slopes), ()
    layer = LayerSpec(
        attention=attention,
        feed_forward=read_feed_forward(config, "activation", gated=False, bias=bias),
        attention_norm=norm,
        feed_forward_norm=norm if has_two_norms else None,
        parallel=is_parallel,
    )
    return read_model(config, [layer] * num_layers(config), ropes)


_PARTS = {
    "attention.output": "self_attention.dense",
    "feed_forward.up": "mlp.dense_h_to_4h",
    "feed_forward.down": "mlp.dense_4h_to_h",
}
FAMILY = Family(
    architectures=("FalconForCausalLM",),
    read=read,
    tensors=TensorNames(
        roots=("transformer.", ""),
        embedding="word_embeddings",
        norm="ln_f",
        layer="h.{}.",
        parts=_PARTS | {"attention_norm": "input_layernorm", "feed_forward_norm": "ln_mlp"},
        aliases={"input_layernorm": "ln_attn", "ln_mlp": "post_attention_layernorm"},
        stacked={"self_attention.query_key_value": QUERY_KEY_VALUE},
        grouped=frozenset({"self_attention.query_key_value"}),
    ),
    # Of two norms, llama.cpp's first one is that of the feed-forward layer.
    gguf=GgufNames(
        architectures=("falcon",),
        tensors=replace(
            GGUF_NAMES,
            parts=GGUF_PARTS | {"attention_norm": "attn_norm_2", "feed_forward_norm": "attn_norm"},
            aliases={"attn_norm_2": "attn_norm"},
            stacked={"attn_qkv": QUERY_KEY_VALUE},
        ),
        fields={"attention.layer_norm_epsilon": "layer_norm_epsilon"},
        # These files always say the number of key heads, as the new ones of config.json.
        complete=lambda config: config.replaced(new_decoder_architecture=True, bias=config.flag("attention_bias")),
    ),
)
