"""Qwen3-Next and Qwen 3.5: the gated delta rule (arXiv 2412.06464) in most layers, attention with an output gate (arXiv
2505.06708) in the others; dense, or with experts and a shared one.
"""

from dataclasses import replace as replace_names

from msgspec.structs import replace

from pyllm.families.config import Config
from pyllm.families.family import (
    GGUF_EXPERTS,
    LINEAR_KINDS,
    Family,
    GgufNames,
    layer_types,
    num_layers,
    read_attention,
    read_feed_forward,
    read_model,
    read_norm,
    read_routing,
    with_experts,
)
from pyllm.families.qwen import SHARED_EXPERT_PARTS
from pyllm.families.rope import read_rope, rope_parameters
from pyllm.families.spec import GatedDeltaSpec, LayerSpec, ModelSpec, SharedExpertSpec
from pyllm.families.tensor_names import GGUF_NAMES, GGUF_PARTS, HUGGINGFACE_NAMES, LLAMA_PARTS


def read_qwen3_next(config: Config) -> ModelSpec:
    """The model that a config.json of Qwen3-Next describes; some layers may be dense."""
    step, without = config.integer("decoder_sparse_step", 1), set(config.integers("mlp_only_layers"))
    experts = _read_experts(config.with_defaults(norm_topk_prob=True))
    return replace(
        experts,
        layers=tuple(
            layer if index not in without and (index + 1) % step == 0 else dense
            for index, (layer, dense) in enumerate(zip(experts.layers, read_qwen3_5(config).layers, strict=True))
        ),
    )


def read_qwen3_5_moe(config: Config) -> ModelSpec:
    """The model that a config.json of Qwen 3.5 with experts describes, or its text model."""
    return _read_experts(config.with_defaults(norm_topk_prob=True))


def read_qwen3_5(config: Config) -> ModelSpec:
    """The model that a config.json of Qwen 3.5 describes, or its text model."""
    config = config.with_defaults(head_dim=256)
    norm, bias = read_norm(config, unit_offset=True), config.flag("attention_bias", False)
    config.refuse_unless(hidden_act="silu")
    delta = GatedDeltaSpec(
        key_heads=config.integer("linear_num_key_heads", 16),
        value_heads=config.integer("linear_num_value_heads", 32),
        key_size=config.integer("linear_key_head_dim", 128),
        value_size=config.integer("linear_value_head_dim", 128),
        width=config.integer("linear_conv_kernel_dim", 4, least=2, most=8),
        epsilon=norm.epsilon,
        is_tiled=config.flag("tiled_value_heads", False),
    )
    if delta.value_heads % delta.key_heads:
        raise config.error("linear_num_value_heads", delta.value_heads, f"a multiple of {delta.key_heads} key heads")
    attention = read_attention(config, bias=bias, output_bias=bias, query_key_norm=norm, output_gate=True)
    interval = config.integer("full_attention_interval", 4)
    layers = [
        LayerSpec(
            attention=attention if kind == "full_attention" else None,
            recurrence=delta if kind == "linear_attention" else None,
            feed_forward=read_feed_forward(config.with_defaults(intermediate_size=1)),
            attention_norm=norm,
            feed_forward_norm=norm,
        )
        for kind in layer_types(config, lambda index: (index + 1) % interval == 0, LINEAR_KINDS)
    ]
    config = config.with_defaults(partial_rotary_factor=rope_parameters(config).number("partial_rotary_factor", 0.25))
    return read_model(config, layers, [read_rope(config, attention.head_size)])


def _read_experts(config: Config) -> ModelSpec:
    shared = SharedExpertSpec(size=config.integer("shared_expert_intermediate_size", 512), gated=True)
    routing = read_routing(config, config.flag("norm_topk_prob"), shared=shared)
    return with_experts(read_qwen3_5(config), routing, config.integer("moe_intermediate_size"))


_PARTS = (
    LLAMA_PARTS
    | SHARED_EXPERT_PARTS
    | {
        "recurrence.gate": "linear_attn.in_proj_z",
        "recurrence.beta": "linear_attn.in_proj_b",
        "recurrence.decay": "linear_attn.in_proj_a",
        "recurrence.decay_scale": "linear_attn.A_log",
        "recurrence.decay_bias": "linear_attn.dt_bias",
        "recurrence.convolution": "linear_attn.conv1d",
        "recurrence.norm": "linear_attn.norm",
        "recurrence.output": "linear_attn.out_proj",
    }
)
_CONVOLVED = ("recurrence.query", "recurrence.key", "recurrence.value")
_QUERY_AND_GATE = {"self_attn.q_proj": ("attention.query", "attention.gate")}
_BARE = frozenset({"linear_attn.A_log", "linear_attn.dt_bias"})
_NEXT_NAMES = replace_names(
    HUGGINGFACE_NAMES,
    parts=_PARTS,
    stacked=_QUERY_AND_GATE
    | {
        "linear_attn.in_proj_qkvz": (*_CONVOLVED, "recurrence.gate"),
        "linear_attn.in_proj_ba": ("recurrence.beta", "recurrence.decay"),
    },
    grouped=frozenset({"self_attn.q_proj", "linear_attn.in_proj_qkvz", "linear_attn.in_proj_ba"}),
    bare=_BARE,
)
_NAMES = replace_names(
    _NEXT_NAMES,
    stacked=_QUERY_AND_GATE | {"linear_attn.in_proj_qkv": _CONVOLVED},
    grouped=frozenset({"self_attn.q_proj"}),
)


def _complete(config: Config) -> Config:
    """Add the fields that llama.cpp's files of Qwen3-Next have in other terms, or not at all."""
    kinds = [LINEAR_KINDS[has] for has in config.items("attention_layers", num_layers(config))]
    size = config.integer("ssm_inner_size") // config.integer("linear_num_value_heads")
    return config.replaced(layer_types=kinds, linear_value_head_dim=size, norm_topk_prob=True)


def _complete_tiled(config: Config) -> Config:
    """The same for Qwen 3.5, whose files have value heads in another order."""
    return _complete(config).replaced(tiled_value_heads=True)


_GGUF_FIELDS = {
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.time_step_rank": "linear_num_value_heads",
    "ssm.inner_size": "ssm_inner_size",
}
_GGUF_EXPERT_FIELDS = GGUF_EXPERTS | {
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}
_NEXT_GGUF_NAMES = replace_names(
    GGUF_NAMES,
    parts=GGUF_PARTS
    | {
        "feed_forward_norm": "post_attention_norm",
        "recurrence.gate": "attn_gate",
        "recurrence.beta": "ssm_beta",
        "recurrence.decay": "ssm_alpha",
        "recurrence.decay_scale": "ssm_a",
        "recurrence.decay_bias": "ssm_dt.bias",
        "recurrence.convolution": "ssm_conv1d",
        "recurrence.norm": "ssm_norm",
        "recurrence.output": "ssm_out",
    },
    stacked={
        "attn_q": ("attention.query", "attention.gate"),
        "attn_qkv": _CONVOLVED,
        "ssm_ba": ("recurrence.beta", "recurrence.decay"),
    },
    grouped=frozenset({"attn_q", "ssm_ba"}),
    bare=frozenset({"ssm_a", "ssm_dt.bias"}),
)
_GGUF_NAMES = replace_names(
    _NEXT_GGUF_NAMES,
    stacked={name: parts for name, parts in _NEXT_GGUF_NAMES.stacked.items() if name != "ssm_ba"},
)
QWEN3_NEXT = Family(
    architectures=("Qwen3NextForCausalLM",),
    read=read_qwen3_next,
    tensors=_NEXT_NAMES,
    gguf=GgufNames(
        architectures=("qwen3next",),
        tensors=_NEXT_GGUF_NAMES,
        fields=_GGUF_FIELDS | _GGUF_EXPERT_FIELDS,
        complete=_complete,
    ),
)
QWEN3_5 = Family(
    architectures=("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"),
    read=read_qwen3_5,
    tensors=_NAMES,
    gguf=GgufNames(architectures=("qwen35",), tensors=_GGUF_NAMES, fields=_GGUF_FIELDS, complete=_complete_tiled),
)
QWEN3_5_MOE = Family(
    architectures=("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"),
    read=read_qwen3_5_moe,
    tensors=_NAMES,
    gguf=GgufNames(
        architectures=("qwen35moe",),
        tensors=_GGUF_NAMES,
        fields=_GGUF_FIELDS | _GGUF_EXPERT_FIELDS,
        complete=_complete_tiled,
    ),
)
