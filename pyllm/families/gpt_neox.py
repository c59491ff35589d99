"""GPT-NeoX and Pythia (arXiv 2204.06745, 2304.01373): parallel layers with two layer norms, biases everywhere; and the
Japanese GPT-NeoX of ABEJA: serial layers, one bias.
"""

from dataclasses import replace

from msgspec.structs import replace as replace_struct

from pyllm.families.config import Config
from pyllm.families.family import (
    Family,
    GgufNames,
    num_layers,
    read_attention,
    read_feed_forward,
    read_model,
    read_norm,
)
from pyllm.families.spec import LayerSpec, ModelSpec
from pyllm.families.tensor_names import GGUF_NAMES, QUERY_KEY_VALUE, TensorNames


def read_gpt_neox(config: Config) -> ModelSpec:
    """The model that a config.json of GPT-NeoX describes."""
    config = config.without("num_key_value_heads").renamed(
        rope_theta="rotary_emb_base", partial_rotary_factor="rotary_pct"
    )
    config = config.with_defaults(hidden_act="gelu", partial_rotary_factor=0.25)
    bias, norm = config.flag("attention_bias", True), read_norm(config, "layer_norm_eps", kind="layer", bias=True)
    layer = LayerSpec(
        attention=read_attention(config, bias=bias, output_bias=bias),
        feed_forward=read_feed_forward(config, gated=False, bias=True),
        attention_norm=norm,
        feed_forward_norm=norm,
        parallel=config.flag("use_parallel_residual", True),
    )
    return read_model(config, [layer] * num_layers(config))


def read_japanese(config: Config) -> ModelSpec:
    """The model that a config.json of the Japanese GPT-NeoX describes: the last layer's attention has a bias."""
    size = config.integer("hidden_size") * config.integer("intermediate_multiple_size", 4)
    config = config.without("num_key_value_heads").renamed(
        rope_theta="rotary_emb_base", partial_rotary_factor="rotary_pct"
    )
    config = config.with_defaults(hidden_act="gelu", tie_word_embeddings=True).replaced(intermediate_size=size)
    norm = read_norm(config, "layer_norm_eps", kind="layer", bias=True)
    layer = LayerSpec(
        attention=read_attention(config),
        feed_forward=read_feed_forward(config, gated=False),
        attention_norm=norm,
        feed_forward_norm=norm,
    )
    last = replace_struct(layer, attention=replace_struct(layer.own_attention, output_bias=True))
    return read_model(config, [layer] * (num_layers(config) - 1) + [last])


GPT_NEOX = Family(
    architectures=("GPTNeoXForCausalLM",),
    read=read_gpt_neox,
    tensors=TensorNames(
        roots=("gpt_neox.", ""),
        embedding="embed_in",
        norm="final_layer_norm",
        heads=("embed_out", "lm_head"),
        parts={
            "attention_norm": "input_layernorm",
            "attention.output": "attention.dense",
            "feed_forward_norm": "post_attention_layernorm",
            "feed_forward.up": "mlp.dense_h_to_4h",
            "feed_forward.down": "mlp.dense_4h_to_h",
        },
        stacked={"attention.query_key_value": QUERY_KEY_VALUE},
        grouped=frozenset({"attention.query_key_value"}),
        derived=(".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"),
    ),
    gguf=GgufNames(
        architectures=("gptneox",),
        tensors=replace(GGUF_NAMES, stacked={"attn_qkv": QUERY_KEY_VALUE}),
        fields={"use_parallel_residual": "use_parallel_residual"},
    ),
)
JAPANESE = Family(
    architectures=("GPTNeoXJapaneseForCausalLM",),
    read=read_japanese,
    tensors=replace(
        GPT_NEOX.tensors,
        roots=("gpt_neox_japanese.", ""),
        aliases={"attention.dense.bias": "attention.dense_bias"},
    ),
)
