"""Ling 3: Kimi's delta attention (arXiv 2510.26692) with bounded decays in most layers, latent attention with a gate of
each head in the others; experts as in DeepSeek V3.
"""

from dataclasses import replace as replace_names

from msgspec.structs import replace

from pyllm.families.config import Config
from pyllm.families.family import (
    GGUF_DEEPSEEK_EXPERTS,
    LINEAR_KINDS,
    Family,
    GgufNames,
    layer_types,
    num_layers,
    read_feed_forward,
    read_model,
    read_norm,
    with_deepseek_experts,
)
from pyllm.families.kimi_linear import DELTA_PARTS, OTHER_NAMES
from pyllm.families.latents import (
    GGUF_LATENT_FIELDS,
    GGUF_LATENT_NAMES,
    LATENT_NAMES,
    complete_latent_attention,
    read_latent_attention,
)
from pyllm.families.ling import LING_LATENT_PARTS, LING_NAMES
from pyllm.families.spec import GatedDeltaSpec, LayerSpec, ModelSpec

_DEFAULTS = {
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 6_000_000.0,
    "num_experts": 512,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "moe_intermediate_size": 768,
    "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 2,
}


def read(config: Config) -> ModelSpec:
    """The model that a config.json of transformers or of the published files describes."""
    config.refuse_unless(hidden_act="silu", no_kda_lora=True, gated_attention_proj_granularity_type="head_wise")
    config.refuse_unless(score_function="sigmoid", expert_swiglu_limit_list=None, share_expert_swiglu_limit_list=None)
    config = config.renamed(**OTHER_NAMES).with_defaults(**_DEFAULTS)
    # transformers has the size of the rotated part as `head_dim`.
    config = config.replaced(head_dim=config.integer("linear_head_dim", config.integer("head_dim")))
    norm, (attention, rope) = read_norm(config), read_latent_attention(config)
    heads, size = config.integer("num_attention_heads"), config.integer("head_dim")
    delta = GatedDeltaSpec(
        key_heads=heads,
        value_heads=heads,
        key_size=size,
        value_size=size,
        width=config.integer("short_conv_kernel_size", 4, least=2, most=8),
        epsilon=norm.epsilon,
        row_decays=True,
        gate="sigmoid",
        are_convolutions_apart=True,
        strongest_decay=_strongest_decay(config),
    )
    every = config.integer("layer_group_size", 6)
    layers = [
        LayerSpec(
            attention=replace(attention, head_gate=True) if kind == "full_attention" else None,
            recurrence=delta if kind == "linear_attention" else None,
            feed_forward=read_feed_forward(config),
            attention_norm=norm,
            feed_forward_norm=norm,
        )
        for kind in layer_types(config, lambda index: (index + 1) % every == 0, LINEAR_KINDS)
    ]
    return with_deepseek_experts(config, read_model(config, layers, [rope]))


def _strongest_decay(config: Config) -> float | None:
    if not config.flag("kda_safe_gate", True):
        return None
    if (bound := config.number("kda_lower_bound", -5.0)) >= 0:
        raise config.error("kda_lower_bound", bound, "a number below 0")
    return bound


def _complete(config: Config) -> Config:
    """Add the fields that llama.cpp's files have in other terms, or not at all."""
    kinds = [LINEAR_KINDS[not has] for has in config.items("attention_layers", num_layers(config))]
    size = config.integer("kda_head_dim")
    config = complete_latent_attention(config).with_defaults(n_group=1, topk_group=1)
    return config.replaced(layer_types=kinds, linear_head_dim=size)


_PARTS = {
    **LING_NAMES.parts,
    **{part: name.replace("self_attn.", "attention.") for part, name in DELTA_PARTS.items()},
    **LING_LATENT_PARTS,
    "attention.gate": "attention.g_proj",
    "recurrence.decay": "attention.f_proj",
    "recurrence.gate": "attention.g_proj",
    "recurrence.output": "attention.dense",
}
FAMILY = Family(
    architectures=("BailingHybridForCausalLM", "BailingMoeV3ForCausalLM"),
    read=read,
    tensors=replace_names(
        LATENT_NAMES,
        roots=("model.",),
        embedding="word_embeddings",
        parts=_PARTS,
        stacked={"attention.kv_b_proj": ("attention.key", "attention.value")},
        grouped=frozenset({"attention.kv_b_proj"}),
        aliases={"attention.q_b_proj": "attention.q_proj", "attention.dense": "attention.o_proj"},
        bare=frozenset({"attention.A_log", "attention.dt_bias", "mlp.gate.expert"}),
    ),
    gguf=GgufNames(
        architectures=("bailingmoe3",),
        tensors=replace_names(
            GGUF_LATENT_NAMES,
            parts=dict(GGUF_LATENT_NAMES.parts)
            | {
                "attention.gate": "attn_gate",
                "recurrence.query": "attn_q",
                "recurrence.key": "attn_k",
                "recurrence.value": "attn_v",
                "recurrence.beta": "ssm_beta",
                "recurrence.decay": "ssm_f_a",
                "recurrence.gate": "ssm_g_a",
                "recurrence.decay_scale": "ssm_a",
                "recurrence.decay_bias": "ssm_dt.bias",
                "recurrence.query_convolution": "ssm_conv1d_q",
                "recurrence.key_convolution": "ssm_conv1d_k",
                "recurrence.value_convolution": "ssm_conv1d_v",
                "recurrence.norm": "ssm_norm",
                "recurrence.output": "attn_output",
            },
            bare=frozenset({"ssm_a", "ssm_dt.bias"}),
        ),
        fields=GGUF_DEEPSEEK_EXPERTS
        | GGUF_LATENT_FIELDS
        | {
            "ssm.conv_kernel": "short_conv_kernel_size",
            "kda.head_dim": "kda_head_dim",
            "kda.safe_gate": "kda_safe_gate",
            "kda.gate_lower_bound": "kda_lower_bound",
        },
        complete=_complete,
    ),
)
