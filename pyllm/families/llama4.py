"""Llama 4: an expert and a shared one in some layers, most layers with RoPE and norms of query and key without weights.

Those layers attend to chunks of the context. The kernels know no chunks, so that a model's context ends with the first.
"""

from dataclasses import replace
from typing import Any

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
from pyllm.families.rope import read_rope
from pyllm.families.spec import AttentionSpec, FeedForwardSpec, LayerSpec, ModelSpec, QueryScaling, SharedExpertSpec
from pyllm.families.tensor_names import EXPERTS, GGUF_NAMES, HUGGINGFACE_NAMES, LLAMA_PARTS


def read(config: Config) -> ModelSpec:
    """The text model that a config.json of Llama 4 describes."""
    config = config.with_defaults(**_DEFAULTS)
    count, norm = num_layers(config), read_norm(config)
    rotates, experts = _rotating_layers(config, count), _layers_with_experts(config, count)
    layers = [
        LayerSpec(
            attention=_read_attention(config, rotates[index]),
            feed_forward=_read_feed_forward(config, index in experts),
            attention_norm=norm,
            feed_forward_norm=norm,
        )
        for index in range(count)
    ]
    rope = read_rope(config, config.integer("head_dim"), theta=500_000.0)
    context = config.integer("max_position_embeddings")
    if any(rotates) and "attention_chunk_size" in config:
        context = min(context, config.integer("attention_chunk_size"))
    return read_model(config, layers, [rope], max_position_embeddings=context)


def _rotating_layers(config: Config, count: int) -> list[bool]:
    """Whether each layer rotates, and so attends to chunks."""
    flags = config.integers("no_rope_layers")  # 1 stands for a layer with RoPE.
    interval = config.integer("no_rope_layer_interval")
    rotates = [bool(flag) for flag in flags] or [(index + 1) % interval != 0 for index in range(count)]
    if len(rotates) < count:
        raise config.error("no_rope_layers", flags, f"a list of {count} items")
    if "layer_types" in config:
        kinds = ["chunked_attention" if each else "full_attention" for each in rotates[:count]]
        config.refuse_unless(layer_types=kinds)
    return rotates


def _layers_with_experts(config: Config, count: int) -> set[int]:
    if "moe_layers" in config:
        return set(config.integers("moe_layers"))
    step = config.integer("interleave_moe_layer_step")
    return set(range(step - 1, count, step))


def _read_attention(config: Config, rotates: bool) -> AttentionSpec:
    bias = config.flag("attention_bias")
    features: dict[str, Any] = {"bias": bias, "output_bias": bias}
    if not rotates:
        features["rope"] = None
        if config.flag("attn_temperature_tuning"):
            scale, length = config.number("attn_scale"), config.integer("floor_scale")
            features["query_scaling"] = QueryScaling(beta=scale, original_length=length, first=1)
    elif config.flag("use_qk_norm"):
        features |= {"query_key_norm": read_norm(config, weight=False), "norm_after_rotation": True}
    return read_attention(config, **features)


def _read_feed_forward(config: Config, has_experts: bool) -> FeedForwardSpec:
    if not has_experts:
        return read_feed_forward(config, size=config.integer("intermediate_size_mlp"))
    shared = SharedExpertSpec(size=config.integer("intermediate_size"))
    routing = read_routing(config, normalised=False, scores="sigmoid", weighs_inputs=True, shared=shared)
    return read_feed_forward(config, routing=routing)


# transformers' defaults, which files leave out.
_DEFAULTS = {
    "attention_bias": False,
    "attention_chunk_size": 8192,
    "attn_scale": 0.1,
    "attn_temperature_tuning": True,
    "floor_scale": 8192,
    "head_dim": 128,
    "interleave_moe_layer_step": 1,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16_384,
    "no_rope_layer_interval": 4,
    "num_experts_per_tok": 1,
    "num_key_value_heads": 8,
    "num_local_experts": 16,
    "rms_norm_eps": 1e-5,
    "use_qk_norm": True,
}
_MAVERICK_EXPERTS = 128
_OF_GATE_AND_UP, _OF_DOWN = "feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj"
FAMILY = Family(
    architectures=("Llama4ForCausalLM", "Llama4ForConditionalGeneration"),
    read=read,
    tensors=replace(
        HUGGINGFACE_NAMES,
        parts=LLAMA_PARTS
        | {
            "feed_forward.gate": "feed_forward.gate_proj",
            "feed_forward.up": "feed_forward.up_proj",
            "feed_forward.down": "feed_forward.down_proj",
            "feed_forward.router": "feed_forward.router",
            "feed_forward.experts.down": _OF_DOWN,
            "feed_forward.shared.gate": "feed_forward.shared_expert.gate_proj",
            "feed_forward.shared.up": "feed_forward.shared_expert.up_proj",
            "feed_forward.shared.down": "feed_forward.shared_expert.down_proj",
        },
        stacked={_OF_GATE_AND_UP: EXPERTS[:2]},
        bare=frozenset({_OF_GATE_AND_UP, _OF_DOWN}),
        transposed=frozenset(EXPERTS),
        interleaved=True,
    ),
    gguf=GgufNames(
        architectures=("llama4",),
        tensors=replace(GGUF_NAMES, interleaved=True),
        fields=GGUF_EXPERTS
        | {
            "attention.sliding_window": "attention_chunk_size",
            "expert_feed_forward_length": "intermediate_size",
            "feed_forward_length": "intermediate_size_mlp",
            "interleave_moe_layer_step": "interleave_moe_layer_step",
        },
        # GGUF files do not have this field; llama.cpp knows Maverick by the number of its experts.
        complete=lambda config: config.replaced(use_qk_norm=config.integer("num_local_experts") != _MAVERICK_EXPERTS),
    ),
)
