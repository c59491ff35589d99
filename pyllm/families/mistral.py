"""Mistral (arXiv 2310.06825), Ministral and Ministral 3: Llama with windows, and in Ministral 3 a query scale by
position; Mixtral (arXiv 2401.04088), which has experts.

Of a Mistral 3 model with images the text model is read, and the tensors for images are skipped.
"""

from dataclasses import replace
from typing import Any

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
    read_routing,
)
from pyllm.families.rope import rope_parameters
from pyllm.families.spec import LayerSpec, ModelSpec, QueryScaling
from pyllm.families.tensor_names import GGUF_NAMES, LLAMA_PARTS, TensorNames

# Defaults of the configuration classes in transformers, by model_type; null in sliding_window means no window.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "ministral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "ministral3": {"num_key_value_heads": 8, "rms_norm_eps": 1e-5},
}


def read(config: Config) -> ModelSpec:
    """The model that a config.json of Mistral describes."""
    config = config.with_defaults(**_DEFAULTS.get(config.text("model_type", ""), {}))
    window, norm = config.optional_integer("sliding_window"), read_norm(config)
    attention = read_attention(config, query_scaling=query_scaling(config))
    layers = [
        LayerSpec(
            attention=replace_struct(attention, window=window if kind == "sliding_attention" else None),
            feed_forward=read_feed_forward(config),
            attention_norm=norm,
            feed_forward_norm=norm,
        )
        for kind in layer_types(config, lambda _: window is not None)
    ]
    return read_model(config, layers)


def read_mixtral(config: Config) -> ModelSpec:
    """The model that a config.json of Mixtral describes."""
    config = config.with_defaults(rms_norm_eps=1e-5)
    norm = read_norm(config)
    layer = LayerSpec(
        attention=read_attention(config, window=config.optional_integer("sliding_window")),
        feed_forward=read_feed_forward(config, routing=read_routing(config, normalised=True)),
        attention_norm=norm,
        feed_forward_norm=norm,
    )
    return read_model(config, [layer] * num_layers(config))


def query_scaling(config: Config) -> QueryScaling | None:
    """The growth of queries with their positions, if the configuration has one."""
    parameters = rope_parameters(config)
    if "llama_4_scaling_beta" in config:  # GGUF
        parameters = parameters.replaced(llama_4_scaling_beta=config.number("llama_4_scaling_beta"))
    if "llama_4_scaling_beta" not in parameters:
        return None
    return QueryScaling(
        beta=parameters.number("llama_4_scaling_beta"),
        original_length=parameters.integer("original_max_position_embeddings"),
    )


FAMILY = Family(
    architectures=(
        "MistralForCausalLM",
        "MinistralForCausalLM",
        "Ministral3ForCausalLM",
        "Mistral3ForConditionalGeneration",
    ),
    read=read,
    # Mistral's earlier models are "llama" in GGUF files.
    gguf=GgufNames(
        architectures=("mistral3",),
        tensors=replace(GGUF_NAMES, interleaved=True),
        fields={"attention.temperature_scale": "llama_4_scaling_beta"},
    ),
)
MIXTRAL = Family(
    architectures=("MixtralForCausalLM",),
    read=read_mixtral,
    tensors=TensorNames(
        parts=LLAMA_PARTS
        | {
            "feed_forward.router": "block_sparse_moe.gate",
            "feed_forward.experts.gate": "block_sparse_moe.experts.{}.w1",
            "feed_forward.experts.up": "block_sparse_moe.experts.{}.w3",
            "feed_forward.experts.down": "block_sparse_moe.experts.{}.w2",
        }
    ),
)
