"""SmolLM3: Llama in which every fourth layer has no positions (NoPE, arXiv 2501.18795)."""

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
from pyllm.families.spec import LayerSpec, ModelSpec
from pyllm.families.tensor_names import GGUF_NAMES


def read(config: Config) -> ModelSpec:
    """The model that a config.json of SmolLM3 describes."""
    config = config.with_defaults(rope_theta=2_000_000.0, tie_word_embeddings=True, num_key_value_heads=4)
    bias, norm = config.flag("attention_bias", False), read_norm(config)
    attention = read_attention(config, bias=bias, output_bias=bias)
    window = config.optional_integer("sliding_window") if config.flag("use_sliding_window", False) else None
    rotates = _rotating_layers(config)
    layers = [
        LayerSpec(
            attention=replace_struct(
                attention,
                rope=0 if rotates[index] else None,
                window=window if kind == "sliding_attention" else None,
            ),
            feed_forward=read_feed_forward(config, bias=config.flag("mlp_bias", False)),
            attention_norm=norm,
            feed_forward_norm=norm,
        )
        for index, kind in enumerate(layer_types(config, lambda index: window is not None and not rotates[index]))
    ]
    return read_model(config, layers)


def _rotating_layers(config: Config) -> list[bool]:
    """Whether each layer uses RoPE; the field no_rope_layers has a 1 for each layer that does."""
    count = num_layers(config)
    if "no_rope_layers" in config:
        return [bool(item) for item in config.items("no_rope_layers", count)]
    interval = config.integer("no_rope_layer_interval", 4)
    return [(index + 1) % interval != 0 for index in range(count)]


FAMILY = Family(
    architectures=("SmolLM3ForCausalLM",),
    read=read,
    gguf=GgufNames(architectures=("smollm3",), tensors=replace(GGUF_NAMES, interleaved=True)),
)
