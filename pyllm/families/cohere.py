"""Cohere (Command R) and Cohere 2 (Command A, arXiv 2504.00698): parallel layers with one layer norm. In Cohere 2,
layers with windows have RoPE, and the others have no positions.
"""

from dataclasses import replace

from msgspec.structs import replace as replace_struct

from pyllm.families.config import Config
from pyllm.families.family import (
    Family,
    GgufNames,
    layer_types,
    num_layers,
    read_attention,
    read_feed_forward,
    read_model,
    read_norm,
)
from pyllm.families.spec import AttentionSpec, LayerSpec, ModelSpec
from pyllm.families.tensors import GGUF_NAMES, TensorNames


def read_cohere(config: Config) -> ModelSpec:
    """The model that a config.json of Cohere describes."""
    config = config.without("head_dim")
    return _read(config, [_attention(config)] * num_layers(config))


def read_cohere2(config: Config) -> ModelSpec:
    """The model that a config.json of Cohere 2 describes."""
    config = config.without("head_dim")
    full = replace_struct(_attention(config), rope=None)
    sliding = replace_struct(full, rope=0, window=config.integer("sliding_window", 4096))
    pattern = config.integer("sliding_window_pattern", 4)
    types = layer_types(config, lambda index: (index + 1) % pattern != 0)
    return _read(config, [sliding if kind == "sliding_attention" else full for kind in types])


def _attention(config: Config) -> AttentionSpec:
    config.refuse_unless(use_qk_norm=False)  # each head has a norm of its own
    bias = config.flag("attention_bias", False)
    return read_attention(config, bias=bias, output_bias=bias)


def _read(config: Config, attentions: list[AttentionSpec]) -> ModelSpec:
    config = config.with_defaults(tie_word_embeddings=True)
    norm, feed_forward = read_norm(config, "layer_norm_eps", kind="layer"), read_feed_forward(config)
    layers = [
        LayerSpec(attention=attention, feed_forward=feed_forward, attention_norm=norm, parallel=True)
        for attention in attentions
    ]
    return read_model(config, layers, logit_scale=config.positive("logit_scale", 0.0625))


COHERE = Family(
    architectures=("CohereForCausalLM",),
    read=read_cohere,
    tensors=TensorNames(interleaved=True),
    gguf=GgufNames(
        architectures=("command-r",),
        tensors=replace(GGUF_NAMES, interleaved=True),
        fields={"logit_scale": "logit_scale"},
    ),
)
COHERE2 = Family(
    architectures=("Cohere2ForCausalLM",),
    read=read_cohere2,
    tensors=TensorNames(interleaved=True),
    gguf=GgufNames(
        architectures=("cohere2",),
        tensors=replace(GGUF_NAMES, interleaved=True),
        fields={"logit_scale": "logit_scale"},
    ),
)
