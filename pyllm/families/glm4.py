"""GLM-4 (arXiv 2406.12793): RoPE on half of each head, in adjacent pairs. The 0414 models also have post-norms.

ChatGLM 3 and the first files of GLM-4-9B are the same model under other names.
"""

from dataclasses import replace

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
from pyllm.families.tensor_names import GATE_UP, GGUF_NAMES, LLAMA_PARTS, QUERY_KEY_VALUE, TensorNames


def read_glm(config: Config) -> ModelSpec:
    """The model that a config.json of GLM-4-9B describes."""
    return _read(config, has_output_norms=False)


def read_chatglm(config: Config) -> ModelSpec:
    """The model that a config.json of ChatGLM 3 or of the first GLM-4-9B describes."""
    config.refuse_unless(
        add_bias_linear=False,
        apply_residual_connection_post_layernorm=False,
        multi_query_attention=True,
        post_layer_norm=True,
        rmsnorm=True,
    )
    config = config.renamed(
        num_hidden_layers="num_layers",
        vocab_size="padded_vocab_size",
        intermediate_size="ffn_hidden_size",
        head_dim="kv_channels",
        num_key_value_heads="multi_query_group_num",
        max_position_embeddings="seq_length",
        rms_norm_eps="layernorm_epsilon",
        attention_bias="add_qkv_bias",
    )
    return read_glm(config.with_defaults(rope_theta=10_000.0 * config.positive("rope_ratio", 1.0)))


def read_glm4(config: Config) -> ModelSpec:
    """The model that a config.json of GLM-4-0414 describes."""
    return _read(config, has_output_norms=True)


def _read(config: Config, has_output_norms: bool) -> ModelSpec:
    config = config.with_defaults(partial_rotary_factor=0.5, head_dim=128, num_key_value_heads=2)
    norm = read_norm(config, epsilon=config.positive("rms_norm_eps", 1.5625e-7))
    layer = LayerSpec(
        attention=read_attention(config, bias=config.flag("attention_bias", True)),
        feed_forward=read_feed_forward(config),
        attention_norm=norm,
        attention_output_norm=norm if has_output_norms else None,
        feed_forward_norm=norm,
        feed_forward_output_norm=norm if has_output_norms else None,
    )
    return read_model(config, [layer] * num_layers(config))


_OUTPUT_NORMS = {
    "attention_output_norm": "post_self_attn_layernorm",
    "feed_forward_output_norm": "post_mlp_layernorm",
}
_TENSORS = TensorNames(parts=LLAMA_PARTS | _OUTPUT_NORMS, stacked={"mlp.gate_up_proj": GATE_UP}, interleaved=True)

GLM = Family(
    architectures=("GlmForCausalLM",),
    read=read_glm,
    tensors=_TENSORS,
    gguf=GgufNames(
        architectures=("chatglm",),
        tensors=replace(GGUF_NAMES, stacked={"attn_qkv": QUERY_KEY_VALUE, "ffn_up": GATE_UP}, interleaved=True),
    ),
)
CHATGLM = Family(
    architectures=("ChatGLMModel", "ChatGLMForConditionalGeneration"),
    read=read_chatglm,
    tensors=TensorNames(
        roots=("transformer.",),
        embedding="embedding.word_embeddings",
        norm="encoder.final_layernorm",
        heads=("transformer.output_layer",),
        layer="encoder.layers.{}.",
        parts={
            "attention_norm": "input_layernorm",
            "attention.output": "self_attention.dense",
            "feed_forward_norm": "post_attention_layernorm",
            "feed_forward.down": "mlp.dense_4h_to_h",
        },
        stacked={"self_attention.query_key_value": QUERY_KEY_VALUE, "mlp.dense_h_to_4h": GATE_UP},
        interleaved=True,
        derived=(".rotary_pos_emb.inv_freq",),
    ),
)
GLM4 = Family(
    architectures=("Glm4ForCausalLM", "Glm4vForConditionalGeneration"),
    read=read_glm4,
    tensors=_TENSORS,
    gguf=GgufNames(architectures=("glm4",), tensors=replace(GGUF_NAMES, stacked={"ffn_up": GATE_UP}, interleaved=True)),
)
