"""Llama 2, 3 and 3.1 onwards (arXiv 2302.13971, 2307.09288, 2407.21783): pre-norm, grouped queries, gated SiLU."""

from dataclasses import replace

from pyllm.families.config import Config
from pyllm.families.family import (
    GGUF_EXPERTS,
    Family,
    GgufNames,
    num_layers,
    read_attention,
    read_feed_forward,
    read_model,
    read_norm,
    read_routing,
)
from pyllm.families.spec import LayerSpec, ModelSpec
from pyllm.families.tensors import GGUF_NAMES


def read(config: Config) -> ModelSpec:
    """The model that a config.json of Llama describes."""
    config.refuse_unless(sliding_window=None)
    bias, norm = config.flag("attention_bias", False), read_norm(config)
    # GGUF files describe Mixtral as a Llama with experts.
    has_experts = config.integer("num_local_experts", 0, least=0) > 0
    routing = read_routing(config, normalised=True) if has_experts else None
    layer = LayerSpec(
        attention=read_attention(config, bias=bias, output_bias=bias),
        feed_forward=read_feed_forward(config, bias=config.flag("mlp_bias", False), routing=routing),
        attention_norm=norm,
        feed_forward_norm=norm,
    )
    return read_model(config, [layer] * num_layers(config))


FAMILY = Family(
    architectures=("LlamaForCausalLM",),
    read=read,
    # llama.cpp rotates adjacent pairs, and its converter reorders the rows of Llama's query and key for that.
    gguf=GgufNames(architectures=("llama",), tensors=replace(GGUF_NAMES, interleaved=True), fields=GGUF_EXPERTS),
)
