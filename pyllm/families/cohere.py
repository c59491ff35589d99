"""Cohere 2 (Command A, arXiv 2504.00698): parallel layers with one layer norm; RoPE only in sliding-window layers."""

from dataclasses import replace

from msgspec.structs import replace as replace_struct

from pyllm.families.config import Config
from pyllm.families.family import (
    Family,
    GgufNames,
    layer_types,
    read_attention,
    read_feed_forward,
    read_model,
    read_norm,
)
from pyllm.families.spec import LayerSpec, ModelSpec
from pyllm.families.tensors import GGUF_NAMES, TensorNames


def read(config: Config) -> ModelSpec:
    """The model that a config.json of Cohere 2 describes."""
    config = config.with_defaults(tie_word_embeddings=True, sliding_window=4096).without("head_dim")
    config.refuse_unless(use_qk_norm=False)
    norm, bias = read_norm(config, "layer_norm_eps", kind="layer"), config.flag("attention_bias", False)
    full = read_attention(config, bias=bias, output_bias=bias, rope=None)
    sliding = replace_struct(full, rope=0, window=config.integer("sliding_window"))
    pattern = config.integer("sliding_window_pattern", 4)
    layers = [
        LayerSpec(
            attention=sliding if kind == "sliding_attention" else full,
            feed_forward=read_feed_forward(config),
            attention_norm=norm,
            parallel=True,
        )
        for kind in layer_types(config, lambda index: (index + 1) % pattern != 0)
    ]
    return read_model(config, layers, logit_scale=config.positive("logit_scale", 0.0625))


FAMILY = Family(
    architectures=("Cohere2ForCausalLM",),
    read=read,
    tensors=TensorNames(interleaved=True),
    gguf=GgufNames(
        architectures=("cohere2",),
        tensors=replace(GGUF_NAMES, interleaved=True),
        fields={"logit_scale": "logit_scale"},
    ),
)
