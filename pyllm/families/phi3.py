"""Phi-3, Phi-3.5, Phi-4 and Phi-4-mini (arXiv 2404.14219, 2412.08905): Llama with fused tensors and LongRoPE."""

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
from pyllm.families.rope import read_rope, rope_parameters
from pyllm.families.spec import LayerSpec, ModelSpec
from pyllm.families.tensor_names import GATE_UP, GGUF_NAMES, QUERY_KEY_VALUE, TensorNames


def read(config: Config) -> ModelSpec:
    """The model that a config.json of Phi-3 describes."""
    attention = read_attention(config, window=config.optional_integer("sliding_window"))
    norm = read_norm(config, epsilon=config.positive("rms_norm_eps", 1e-5))
    layer = LayerSpec(
        attention=attention, feed_forward=read_feed_forward(config), attention_norm=norm, feed_forward_norm=norm
    )
    # The first files have other names for LongRoPE.
    rope = read_rope(_with_original(config), attention.head_size, renamed={"su": "longrope", "yarn": "longrope"})
    return read_model(
        config,
        [layer] * num_layers(config),
        [rope],
        max_position_embeddings=config.integer("max_position_embeddings"),
    )


def _with_original(config: Config) -> Config:
    """A copy with the original context of transformers, where the file has none."""
    name = "original_max_position_embeddings"
    return config if name in rope_parameters(config) else config.with_defaults(**{name: _ORIGINAL})


_ORIGINAL = 4096  # the default of transformers, and the value of all models with shorter contexts

FAMILY = Family(
    architectures=("Phi3ForCausalLM",),
    read=read,
    tensors=TensorNames(stacked={"self_attn.qkv_proj": QUERY_KEY_VALUE, "mlp.gate_up_proj": GATE_UP}),
    gguf=GgufNames(
        architectures=("phi3",),
        tensors=replace(GGUF_NAMES, stacked={"attn_qkv": QUERY_KEY_VALUE, "ffn_up": GATE_UP}),
    ),
)
