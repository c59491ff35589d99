"""BLOOM and BLOOMZ (arXiv 2211.05100): ALiBi, a norm of the embedding, layer norms, biases everywhere."""

from dataclasses import replace

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
    """The model that a config.json of BLOOM describes; residuals after the norm are refused."""
    config.refuse_unless(apply_residual_connection_post_layernorm=False)
    config = config.without("num_key_value_heads").renamed(
        hidden_size="n_embed",
        num_hidden_layers="n_layer",
        num_attention_heads="n_head",
        max_position_embeddings="seq_length",
        layer_norm_eps="layer_norm_epsilon",
    )
    config = config.with_defaults(max_position_embeddings=2048, tie_word_embeddings=True)
    config = config.replaced(intermediate_size=4 * config.integer("hidden_size"), hidden_act="gelu_pytorch_tanh")
    slopes = alibi_slopes(config.integer("num_attention_heads"))
    norm = read_norm(config, "layer_norm_eps", kind="layer", bias=True)
    layer = LayerSpec(
        attention=read_attention(config, bias=True, output_bias=True, rope=None, slopes=slopes),
        feed_forward=read_feed_forward(config, gated=False, bias=True),
        attention_norm=norm,
        feed_forward_norm=norm,
    )
    return read_model(config, [layer] * num_layers(config), ropes=(), embedding_norm=norm)


FAMILY = Family(
    architectures=("BloomForCausalLM",),
    read=read,
    tensors=TensorNames(
        roots=("transformer.", ""),
        embedding="word_embeddings",
        embedding_norm="word_embeddings_layernorm",
        norm="ln_f",
        layer="h.{}.",
        parts={
            "attention_norm": "input_layernorm",
            "attention.output": "self_attention.dense",
            "feed_forward_norm": "post_attention_layernorm",
            "feed_forward.up": "mlp.dense_h_to_4h",
            "feed_forward.down": "mlp.dense_4h_to_h",
        },
        stacked={"self_attention.query_key_value": QUERY_KEY_VALUE},
        grouped=frozenset({"self_attention.query_key_value"}),
    ),
    gguf=GgufNames(architectures=("bloom",), tensors=replace(GGUF_NAMES, stacked={"attn_qkv": QUERY_KEY_VALUE})),
)
