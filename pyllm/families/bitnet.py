"""BitNet b1.58 (arXiv 2402.17764): Llama with norms before the last projection of attention and of feed-forward.

The weights are those of the files: three values in a model that is converted, and its activations stay floats.
"""

from dataclasses import replace as replace_names

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
from pyllm.families.tensor_names import GGUF_NAMES, GGUF_PARTS, LLAMA_PARTS, TensorNames


def read(config: Config) -> ModelSpec:
    """The model that a config.json describes."""
    config = config.with_defaults(rms_norm_eps=1e-5, hidden_act="relu2", rope_theta=500_000.0)
    norm, bias = read_norm(config), config.flag("attention_bias", False)
    layer = LayerSpec(
        attention=read_attention(config, output_norm=norm, bias=bias, output_bias=bias),
        feed_forward=read_feed_forward(config, inner_norm=norm),
        attention_norm=norm,
        feed_forward_norm=norm,
    )
    return read_model(config, [layer] * num_layers(config))


FAMILY = Family(
    architectures=("BitNetForCausalLM",),
    read=read,
    tensors=TensorNames(
        parts=LLAMA_PARTS
        | {"attention.output_norm": "self_attn.attn_sub_norm", "feed_forward.inner_norm": "mlp.ffn_sub_norm"},
        # The names of the first models, which llama.cpp's converter knows.
        aliases={
            "self_attn.attn_sub_norm": "self_attn.inner_attn_ln",
            "mlp.ffn_sub_norm": "mlp.ffn_layernorm",
        },
    ),
    gguf=GgufNames(
        architectures=("bitnet",),
        tensors=replace_names(
            GGUF_NAMES,
            parts=GGUF_PARTS | {"attention.output_norm": "attn_sub_norm", "feed_forward.inner_norm": "ffn_sub_norm"},
        ),
        complete=lambda config: config.replaced(hidden_act="silu"),  # llama.cpp has the first models alone.
    ),
)
