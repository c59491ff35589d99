"""GPT-J: parallel layers with one layer norm, RoPE on adjacent pairs of a part of each head, a head with a bias.

CodeGen (arXiv 2203.13474) differs in its files: they have query, value and key of a quarter of the heads in turn.
"""

from dataclasses import replace

from pyllm.families.config import Config
from pyllm.families.family import (
    Family,
    num_layers,
    read_attention,
    read_feed_forward,
    read_model,
    read_norm,
)
from pyllm.families.gpt2 import with_standard_names
from pyllm.families.spec import LayerSpec, ModelSpec
from pyllm.families.tensor_names import TensorNames


def read(config: Config) -> ModelSpec:
    """The model that a config.json of GPT-J or CodeGen describes."""
    rotates_all = "rotary_dim" in config.nulls
    config = with_standard_names(config).with_defaults(activation_function="gelu_new")
    attention = read_attention(config)
    rotary_size = attention.head_size if rotates_all else config.integer("rotary_dim", 64)
    layer = LayerSpec(
        attention=attention,
        feed_forward=read_feed_forward(config, "activation_function", gated=False, bias=True),
        attention_norm=read_norm(config, "layer_norm_eps", kind="layer", bias=True),
        parallel=True,
    )
    return read_model(
        config.replaced(partial_rotary_factor=rotary_size / attention.head_size),
        [layer] * num_layers(config),
        head_bias=True,
    )


GPTJ = Family(
    architectures=("GPTJForCausalLM",),
    read=read,
    tensors=TensorNames(
        roots=("transformer.", ""),
        embedding="wte",
        norm="ln_f",
        layer="h.{}.",
        parts={
            "attention_norm": "ln_1",
            "attention.query": "attn.q_proj",
            "attention.key": "attn.k_proj",
            "attention.value": "attn.v_proj",
            "attention.output": "attn.out_proj",
            "feed_forward.up": "mlp.fc_in",
            "feed_forward.down": "mlp.fc_out",
        },
        interleaved=True,
        derived=(".attn.bias", ".attn.masked_bias", ".attn.embed_positions"),
    ),
)
CODEGEN = Family(
    architectures=("CodeGenForCausalLM",),
    read=read,
    tensors=replace(
        GPTJ.tensors,
        stacked={"attn.qkv_proj": ("attention.query", "attention.value", "attention.key")},
        grouped=frozenset({"attn.qkv_proj"}),
        groups=4,
    ),
)
