"""Laguna: gates of attention by softplus, windows with a RoPE and a number of heads of their own, and experts chosen by
sigmoids.
"""

from dataclasses import replace as replace_names
from typing import Any

from msgspec.structs import replace

from pyllm.families.config import Config
from pyllm.families.family import (
    GGUF_EXPERTS,
    GGUF_SCORES,
    Family,
    GgufNames,
    layer_types,
    num_layers,
    read_attention,
    read_feed_forward,
    read_model,
    read_norm,
    read_routing,
    with_deepseek_experts,
)
from pyllm.families.rope import read_rope
from pyllm.families.spec import AttentionSpec, LayerSpec, ModelSpec, SharedExpertSpec
from pyllm.families.tensor_names import GGUF_NAMES, GGUF_PARTS, LLAMA_PARTS, TensorNames

_KINDS = ("full_attention", "sliding_attention")
_ROPES = {
    "full_attention": {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0},
}
_HEAD_GATES, _WIDE_GATES = (True, "per-head"), ("per-element",)


def read(config: Config) -> ModelSpec:
    """The model that a config.json describes; some layers may be dense."""
    config = config.with_defaults(head_dim=128, rope_parameters=_ROPES, moe_intermediate_size=512)
    config.refuse_unless(moe_apply_router_weight_on_input=False, moe_router_logit_softcapping=0.0, gating_types=None)
    config.refuse_unless(attention_bias=False)
    norm, count = read_norm(config), num_layers(config)
    heads: list[Any] = [config.integer("num_attention_heads")] * count
    if "num_attention_heads_per_layer" in config:
        heads = config.items("num_attention_heads_per_layer", count)
    kinds = layer_types(config, lambda _: False)
    layers = [
        LayerSpec(
            attention=_attention(config.replaced(num_attention_heads=number), kind),
            feed_forward=read_feed_forward(config),
            attention_norm=norm,
            feed_forward_norm=norm,
        )
        for number, kind in zip(heads, kinds, strict=True)
    ]
    ropes = [read_rope(config, config.integer("head_dim"), layer_type=kind) for kind in _KINDS]
    routing = read_routing(
        config.with_defaults(num_experts=256, num_experts_per_tok=8),
        normalised=True,
        scores="sigmoid",
        correction=True,
        factor=config.positive("moe_routed_scaling_factor", 1.0),
        shared=SharedExpertSpec(size=config.integer("shared_expert_intermediate_size", 512)),
    )
    spec = read_model(config, layers, ropes, max_position_embeddings=config.integer("max_position_embeddings"))
    return with_deepseek_experts(config.with_defaults(first_k_dense_replace=1), spec, routing)


def _attention(config: Config, kind: str) -> AttentionSpec:
    gating = config.value("gating")
    gating = True if gating is None else gating
    if gating not in (*_HEAD_GATES, *_WIDE_GATES):
        raise config.error("gating", gating, "true, per-head or per-element")
    full = read_attention(
        config,
        query_key_norm=read_norm(config),
        head_gate=gating in _HEAD_GATES,
        output_gate=gating in _WIDE_GATES,
        gate_function="softplus",
    )
    if kind == "full_attention":
        return full
    return replace(full, rope=1, window=config.integer("sliding_window", 512))


def _complete(config: Config) -> Config:
    """Add the fields that llama.cpp's files have in other terms: the rotation of each type of layers."""
    config.refuse_unless(expert_gating_func=GGUF_SCORES["sigmoid"], expert_weights_norm=True)
    heads, size, count = config.value("heads"), config.integer("head_dim"), num_layers(config)
    full = config.section("rope_scaling").with_defaults(rope_type="default", rope_theta=config.positive("rope_theta"))
    full = full.with_defaults(partial_rotary_factor=config.positive("partial_rotary_factor", 1.0))
    sliding = {
        "rope_theta": config.positive("rope_local_base_freq", config.positive("rope_theta")),
        "partial_rotary_factor": config.integer("sliding_rotary_size", size) / size,
    }
    parameters = {"full_attention": {name: full.value(name) for name in full}, "sliding_attention": sliding}
    heads = heads if isinstance(heads, list) else [heads] * count
    gate = "per-head" if config.equals("attention_gate_size", heads[0]) else "per-element"
    if "layer_types" not in config and "sliding_window" in config:
        # llama.cpp takes every fourth layer, from the first one on, as one with full attention.
        config = config.replaced(layer_types=[_KINDS[index % 4 > 0] for index in range(count)])
    config = config.without("rope_scaling", "partial_rotary_factor", "rope_theta")
    return config.replaced(
        rope_parameters=parameters, num_attention_heads=heads[0], num_attention_heads_per_layer=heads, gating=gate
    )


_CORRECTION = "mlp.experts.e_score_correction"  # and "_bias"
FAMILY = Family(
    architectures=("LagunaForCausalLM",),
    read=read,
    tensors=TensorNames(
        parts=LLAMA_PARTS | {"attention.gate": "self_attn.g_proj", "feed_forward.correction": _CORRECTION},
        aliases={
            _CORRECTION: LLAMA_PARTS["feed_forward.correction"],
            **{f"mlp.shared_experts.{name}_proj": f"mlp.shared_expert.{name}_proj" for name in ("gate", "up", "down")},
        },
        bare=frozenset({_CORRECTION, LLAMA_PARTS["feed_forward.correction"]}),
    ),
    gguf=GgufNames(
        architectures=("laguna",),
        tensors=replace_names(GGUF_NAMES, parts=GGUF_PARTS | {"attention.gate": "attn_gate"}),
        fields=GGUF_EXPERTS
        | {
            "attention.head_count": "heads",
            "expert_feed_forward_length": "moe_intermediate_size",
            "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
            "expert_gating_func": "expert_gating_func",
            "expert_weights_norm": "expert_weights_norm",
            "expert_weights_scale": "moe_routed_scaling_factor",
            "leading_dense_block_count": "first_k_dense_replace",
            "rope.dimension_count_swa": "sliding_rotary_size",
        },
        complete=_complete,
    ),
)
