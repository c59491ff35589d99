"""Bamba: Mamba-2's layers (arXiv 2405.21060) and a few with attention, each before a feed-forward layer."""

from pyllm.families.config import Config
from pyllm.families.family import Family, num_layers, read_attention, read_feed_forward, read_model, read_norm
from pyllm.families.spec import LayerSpec, ModelSpec
from pyllm.families.state_space import read_state_space, with_state_space
from pyllm.families.tensor_names import LLAMA_PARTS, TensorNames

BAMBA = with_state_space(
    TensorNames(
        norm="final_layernorm",
        parts=LLAMA_PARTS
        | {
            "feed_forward_norm": "pre_ff_layernorm",
            "feed_forward.gate": "feed_forward.gate_proj",
            "feed_forward.up": "feed_forward.up_proj",
            "feed_forward.down": "feed_forward.down_proj",
        },
    ),
    "mamba",
)
"""The names of Bamba's tensors, which Falcon-H1's have too."""


def read_bamba(config: Config) -> ModelSpec:
    """The model that a config.json of Bamba describes."""
    config = config.with_defaults(rms_norm_eps=1e-5, partial_rotary_factor=0.5)
    norm, bias = read_norm(config), config.flag("attention_bias", False)
    attention = read_attention(config, bias=bias, output_bias=bias)
    recurrence, with_attention = read_state_space(config, norm.epsilon), set(config.integers("attn_layer_indices"))
    layers = [
        LayerSpec(
            attention=attention if index in with_attention else None,
            recurrence=None if index in with_attention else recurrence,
            feed_forward=read_feed_forward(config, bias=config.flag("mlp_bias", False)),
            attention_norm=norm,
            feed_forward_norm=norm,
        )
        for index in range(num_layers(config))
    ]
    return read_model(config, layers)


FAMILY = Family(
    architectures=("BambaForCausalLM",),
    read=read_bamba,
    tensors=BAMBA,
)
