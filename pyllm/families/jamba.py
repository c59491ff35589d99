"""Jamba (arXiv 2403.19887): Mamba's layers and a few with attention without positions, with experts in some."""

from collections.abc import Collection

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
    with_experts,
)
from pyllm.families.selective_scan import (
    GGUF_SELECTIVE_SCAN,
    read_selective_scan,
    with_gguf_selective_scan,
    with_selective_scan,
)
from pyllm.families.spec import LayerSpec, ModelSpec
from pyllm.families.tensor_names import GGUF_NAMES, LLAMA_PARTS, TensorNames


def read_jamba(config: Config) -> ModelSpec:
    """The model that a config.json of Jamba describes."""
    config = config.with_defaults(num_key_value_heads=8, num_experts=16, num_experts_per_tok=2)
    norm, attention = read_norm(config), read_attention(config, rope=None)
    recurrence, feed_forward = read_selective_scan(config, norm), read_feed_forward(config)
    with_attention = _layers_with(config, "attention_layers", "attn_layer", 8, 4)
    layers = [
        LayerSpec(
            attention=attention if index in with_attention else None,
            recurrence=None if index in with_attention else recurrence,
            feed_forward=feed_forward,
            attention_norm=norm,
            feed_forward_norm=norm,
        )
        for index in range(num_layers(config))
    ]
    spec = read_model(config, layers, ropes=())
    if config.integer("num_experts") == 1:
        return spec
    mixed = _layers_with(config, "expert_layers", "expert_layer", 2, 1)
    routing = read_routing(config, normalised=False)
    return with_experts(spec, routing, feed_forward.size, lambda index: index in mixed)


def _layers_with(config: Config, flags: str, kind: str, period: int, first: int) -> Collection[int]:
    """The layers of a kind: one in each period, or those with a flag that follows from a GGUF file's tensors."""
    if flags in config:
        return [index for index, has in enumerate(config.items(flags, num_layers(config))) if has]
    period, first = config.integer(f"{kind}_period", period), config.integer(f"{kind}_offset", first, least=0)
    if first >= period:
        raise config.error(f"{kind}_offset", first, f"less than {kind}_period, {period}")
    return range(first, num_layers(config), period)


FAMILY = Family(
    architectures=("JambaForCausalLM",),
    read=read_jamba,
    tensors=with_selective_scan(
        TensorNames(
            norm="final_layernorm",
            parts=LLAMA_PARTS
            | {
                "feed_forward_norm": "pre_ff_layernorm",
                "feed_forward.gate": "feed_forward.gate_proj",
                "feed_forward.up": "feed_forward.up_proj",
                "feed_forward.down": "feed_forward.down_proj",
                "feed_forward.router": "feed_forward.router",
                "feed_forward.experts.gate": "feed_forward.experts.{}.gate_proj",
                "feed_forward.experts.up": "feed_forward.experts.{}.up_proj",
                "feed_forward.experts.down": "feed_forward.experts.{}.down_proj",
            },
        ),
        "mamba",
    ),
    gguf=GgufNames(
        architectures=("jamba",),
        tensors=with_gguf_selective_scan(GGUF_NAMES),
        fields=GGUF_SELECTIVE_SCAN | GGUF_EXPERTS | {"expert_count": "num_experts"},
    ),
)
