"""Phi 1, 1.5 and 2 (arXiv 2306.11644, 2309.05463): parallel layers with one layer norm, biases everywhere."""

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
from pyllm.families.tensor_names import LLAMA_PARTS, TensorNames


def read(config: Config) -> ModelSpec:
    """The model that a config.json of Phi describes."""
    config.refuse_unless(qk_layernorm=False)
    config = config.with_defaults(hidden_act="gelu_new", partial_rotary_factor=0.5)
    layer = LayerSpec(
        attention=read_attention(config, bias=True, output_bias=True),
        feed_forward=read_feed_forward(config, gated=False, bias=True),
        attention_norm=read_norm(config, "layer_norm_eps", kind="layer", bias=True),
        parallel=True,
    )
    return read_model(config, [layer] * num_layers(config), head_bias=True)


FAMILY = Family(
    architectures=("PhiForCausalLM",),
    read=read,
    tensors=TensorNames(
        norm="final_layernorm",
        parts=LLAMA_PARTS
        | {"attention.output": "self_attn.dense", "feed_forward.up": "mlp.fc1", "feed_forward.down": "mlp.fc2"},
    ),
    gguf=GgufNames(architectures=("phi2",)),
)
