"""Step 3.5 Flash (arXiv 2602.10604), and the text model of Step 3.7: gated heads, more of them in layers with windows,
and experts of DeepSeek V3's kind, whose activations have limits in the last layers.
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
    expert_layers,
    layer_types,
    num_layers,
    of_types,
    read_attention,
    read_feed_forward,
    read_model,
    read_norm,
    read_routing,
    without_further_layers,
)
from pyllm.families.rope import read_rope
from pyllm.families.spec import LayerSpec, ModelSpec, RoutingSpec, SharedExpertSpec
from pyllm.families.tensor_names import GGUF_NAMES, GGUF_PARTS, LLAMA_PARTS, TensorNames

_KINDS = ("full_attention", "sliding_attention")
_FIRST_EXPERTS = 3  # the layer from which on there are experts, if nothing says so
_DEFAULTS = {
    "head_dim": 128,
    "num_key_value_heads": 8,
    "n_routed_experts": 288,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 1280,
    "share_expert_dim": 1280,
    "rms_norm_eps": 1e-5,
}


def read(config: Config) -> ModelSpec:
    """The model that a config.json describes, under the names of the published files or those of transformers."""
    config = config.renamed(
        num_key_value_heads="num_attention_groups",
        n_routed_experts="moe_num_experts",
        num_experts_per_tok="moe_top_k",
        share_expert_dim="share_expert_dims",
    ).with_defaults(**_DEFAULTS)
    config.refuse_unless(moe_router_activation="sigmoid", use_moe_router_bias=True, norm_expert_weight=True)
    config.refuse_unless(use_head_wise_attn_gate=True, zero_centered=True, attention_bias=False, mlp_bias=False)
    config.refuse_unless(moe_every_n_layer=1, use_bidirectional_attention=False, yarn_only_types=[_KINDS[0]])
    config.refuse_unless(hidden_act="silu")
    if not all(config.value("use_rope_layers") or ()):
        raise config.error("use_rope_layers", config.value("use_rope_layers"), "empty, or true for all layers")
    norm, count, kinds = read_norm(config, unit_offset=True), num_layers(config), layer_types(config, lambda _: False)
    scale = config.positive("query_pre_attn_scalar", config.integer("head_dim")) ** -0.5
    full = read_attention(config, query_key_norm=norm, head_gate=True, scale=scale)
    sliding = full
    if _KINDS[1] in kinds:
        of_sliding = read_attention(_of_sliding(config), query_key_norm=norm, head_gate=True, scale=scale)
        sliding = replace(of_sliding, rope=1, window=config.integer("sliding_window"))
    limits, shared_limits = (_limits(config, name, count) for name in ("swiglu_limits", "swiglu_limits_shared"))
    routing, size = _read_routing(config), config.integer("moe_intermediate_size")
    have_experts = expert_layers(_with_experts_named(config), count)
    layers = []
    for index, kind in enumerate(kinds):
        feed_forward = read_feed_forward(config, limit=shared_limits[index])
        if have_experts[index]:
            shared = SharedExpertSpec(size=config.integer("share_expert_dim"), limit=shared_limits[index])
            of_layer = replace(routing, shared=shared)
            feed_forward = replace(feed_forward, size=size, routing=of_layer, limit=limits[index])
        layers.append(
            LayerSpec(
                attention=sliding if kind == _KINDS[1] else full,
                feed_forward=feed_forward,
                attention_norm=norm,
                feed_forward_norm=norm,
            )
        )
    config = _with_ropes(config, kinds)
    ropes = [read_rope(config, config.integer("head_dim"), layer_type=kind) for kind in _KINDS]
    return read_model(config, layers, ropes, max_position_embeddings=config.integer("max_position_embeddings"))


def _of_sliding(config: Config) -> Config:
    """The configuration of layers with windows, which may have other numbers of heads."""
    other = config.section("attention_other_setting").renamed(num_key_value_heads="num_attention_groups")
    own = {name: other.integer(name) for name in ("num_attention_heads", "num_key_value_heads") if name in other}
    if "num_sliding_attention_heads" in config:
        own["num_attention_heads"] = config.integer("num_sliding_attention_heads")
    other.refuse_unless(head_dim=config.integer("head_dim"))
    return config.replaced(**own)


def _read_routing(config: Config) -> RoutingSpec:
    return read_routing(
        config,
        normalised=True,
        scores="sigmoid",
        correction=True,
        factor=config.positive("moe_router_scaling_factor", 1.0),
        float32=config.flag("need_fp32_gate", False),
    )


def _with_experts_named(config: Config) -> Config:
    """A copy that names the layers with experts as transformers does: published files have a list of numbers."""
    layers = config.value("moe_layers_enum")
    if layers is None:
        return config.with_defaults(first_k_dense_replace=_FIRST_EXPERTS)
    numbers = layers.split(",") if isinstance(layers, str) else layers
    try:
        chosen = {int(number) for number in numbers}
    except (TypeError, ValueError):
        raise config.error("moe_layers_enum", layers, "a list of whole numbers") from None
    kinds = ["sparse" if index in chosen else "dense" for index in range(num_layers(config))]
    return config.with_defaults(mlp_layer_types=kinds)


def _limits(config: Config, name: str, count: int) -> list[float | None]:
    """The limit of each layer's activations; 0 and null are none."""
    numbers = config.items(name, count) if name in config else [None] * count
    limits = [Config({name: number}, config.place).number(name, 0.0) for number in numbers]
    if any(limit < 0 for limit in limits):
        raise config.error(name, numbers, "numbers of at least 0")
    return [limit or None for limit in limits]


def _with_ropes(config: Config, kinds: list[str]) -> Config:
    """A copy with a RoPE section for each kind of layers: published files have lists with a number for each layer.

    A scaling is that of full attention alone.
    """
    section = config.section("rope_parameters")
    if any(kind in section for kind in _KINDS):
        return config
    ropes: dict[str, dict[str, Any]] = {}
    for kind in _KINDS:
        if kind in kinds:
            index = kinds.index(kind)
            values = {"rope_theta": _of_layer(config, "rope_theta", index, 10_000.0)}
            values["partial_rotary_factor"] = _of_layer(config, "partial_rotary_factors", index, 1.0)
            scaling = config.section("rope_scaling") if kind == _KINDS[0] else Config({})
            ropes[kind] = values | {name: scaling.value(name) for name in scaling}
    return config.without("rope_theta", "rope_scaling", "partial_rotary_factor").replaced(rope_parameters=ropes)


def _of_layer(config: Config, name: str, index: int, default: float) -> float:
    value = config.value(name)
    if isinstance(value, list):
        value = config.items(name, num_layers(config))[index]
    return Config({name: value}, config.place).positive(name, default)


def _complete(config: Config) -> Config:
    """Add what llama.cpp's files have in other terms; layers with full attention rotate half of what the others do."""
    config.refuse_unless(expert_gating_func=GGUF_SCORES["sigmoid"])
    config = without_further_layers(config)
    kinds = layer_types(config, lambda _: False)
    heads, kv_heads = (of_types(config.items(name, len(kinds)), kinds) for name in ("heads", "kv_heads"))
    size = config.integer("head_dim")
    rotary = int(size * config.positive("partial_rotary_factor", 1.0))
    theta = config.positive("rope_theta")
    scaling = config.section("rope_scaling")
    if "factors" in scaling:
        scaling = scaling.replaced(factors=scaling.value("factors")[: rotary // 4])
    ropes = {
        _KINDS[0]: {"rope_theta": theta, "partial_rotary_factor": rotary // 2 / size},
        _KINDS[1]: {
            "rope_theta": config.positive("rope_local_base_freq", theta),
            "partial_rotary_factor": rotary / size,
        },
    }
    ropes[_KINDS[0]] |= {name: scaling.value(name) for name in scaling}
    config = config.without("rope_scaling", "partial_rotary_factor", "rope_theta", "attention_bias")
    return config.with_defaults(first_k_dense_replace=0).replaced(
        num_attention_heads=heads[0],
        num_key_value_heads=kv_heads[0],
        attention_other_setting={"num_attention_heads": heads[1], "num_attention_groups": kv_heads[1]},
        rope_parameters=ropes,
    )


_CORRECTION = "moe.router"  # and "_bias"
FAMILY = Family(
    architectures=("Step3p5ForCausalLM",),
    read=read,
    tensors=TensorNames(
        parts=LLAMA_PARTS
        | {
            "attention.gate": "self_attn.g_proj",
            "feed_forward.router": "moe.gate",
            "feed_forward.correction": _CORRECTION,
            **{f"feed_forward.experts.{part}": f"moe.{part}_proj" for part in ("gate", "up", "down")},
            **{f"feed_forward.shared.{part}": f"share_expert.{part}_proj" for part in ("gate", "up", "down")},
        },
        bare=frozenset({_CORRECTION}),
    ),
    gguf=GgufNames(
        architectures=("step35",),
        tensors=replace_names(GGUF_NAMES, parts=GGUF_PARTS | {"attention.gate": "attn_gate"}),
        fields=GGUF_EXPERTS
        | {
            "attention.head_count": "heads",
            "attention.head_count_kv": "kv_heads",
            "expert_feed_forward_length": "moe_intermediate_size",
            "expert_shared_feed_forward_length": "share_expert_dim",
            "expert_gating_func": "expert_gating_func",
            "expert_weights_norm": "norm_expert_weight",
            "expert_weights_scale": "moe_router_scaling_factor",
            "leading_dense_block_count": "first_k_dense_replace",
            "nextn_predict_layers": "nextn_predict_layers",
            "swiglu_clamp_exp": "swiglu_limits",
            "swiglu_clamp_shexp": "swiglu_limits_shared",
        },
        complete=_complete,
    ),
)
