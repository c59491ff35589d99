"""Qwen 2 and 2.5 (arXiv 2407.10671): Llama with biases; Qwen 3 (arXiv 2505.09388): with norms of query and key."""

from msgspec.structs import replace

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
from pyllm.families.spec import AttentionSpec, LayerSpec, ModelSpec


def read_qwen2(config: Config) -> ModelSpec:
    """The model that a config.json of Qwen 2 or 2.5 describes."""
    return _read(config, read_attention(config, bias=True))


def read_qwen3(config: Config) -> ModelSpec:
    """The model that a config.json of Qwen 3 describes."""
    config = config.with_defaults(head_dim=128)
    bias = config.flag("attention_bias", False)
    attention = read_attention(config, bias=bias, output_bias=bias, query_key_norm=read_norm(config))
    return _read(config, attention)


def _read(config: Config, attention: AttentionSpec) -> ModelSpec:
    norm, window = read_norm(config), None
    if config.flag("use_sliding_window", False):
        window = config.optional_integer("sliding_window")
    first = config.integer("max_window_layers", 28, least=0)
    layers = [
        LayerSpec(
            attention=replace(attention, window=window if kind == "sliding_attention" else None),
            feed_forward=read_feed_forward(config),
            attention_norm=norm,
            feed_forward_norm=norm,
        )
        for kind in layer_types(config, lambda index: window is not None and index >= first)
    ]
    return read_model(config, layers)


QWEN2 = Family(architectures=("Qwen2ForCausalLM",), read=read_qwen2, gguf=GgufNames(architectures=("qwen2",)))
QWEN3 = Family(architectures=("Qwen3ForCausalLM",), read=read_qwen3, gguf=GgufNames(architectures=("qwen3",)))
