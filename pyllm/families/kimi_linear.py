"""Kimi Linear (arXiv 2510.26692): delta attention with a decay of each row of a state in most layers, latent attention
without positions in the others; experts as in DeepSeek V3.
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
from pyllm.families.latents import (
    GGUF_LATENT_FIELDS,
    GGUF_LATENT_NAMES,
    LATENT_NAMES,
    complete_latent_attention,
    read_latent_attention,
)
from pyllm.families.spec import GatedDeltaSpec, LayerSpec, ModelSpec

_DEFAULTS = {
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "linear_num_heads": 32,
    "linear_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "rms_norm_eps": 1e-5,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "n_group": 1,
    "moe_intermediate_size": 1024,
    "routed_scaling_factor": 2.446,
    "first_k_dense_replace": 1,
}
OTHER_NAMES = {
    "max_position_embeddings": "model_max_length",
    "norm_topk_prob": "moe_renormalize",
    "n_group": "num_expert_group",
    "num_experts_per_tok": "num_experts_per_token",
    "n_shared_experts": "num_shared_experts",
}
"""The names of fields in files of Kimi Linear and of Ling 3."""
_SECTION_NAMES = {
    "linear_num_heads": "num_heads",
    "linear_head_dim": "head_dim",
    "linear_conv_kernel_dim": "short_conv_kernel_size",
}


def read(config: Config) -> ModelSpec:
    """The model that a config.json describes."""
    config.refuse_unless(mla_use_nope=True, moe_router_activation_func="sigmoid", moe_layer_freq=1, hidden_act="silu")
    config, section = config.renamed(**OTHER_NAMES), config.section("linear_attn_config")
    sizes = {name: section.integer(own) for name, own in _SECTION_NAMES.items() if own in section}
    config = config.replaced(**sizes).with_defaults(**_DEFAULTS)
    norm, (attention, _) = read_norm(config), read_latent_attention(config)
    heads, size = (config.integer(f"linear_{name}") for name in ("num_heads", "head_dim"))
    delta = GatedDeltaSpec(
        key_heads=heads,
        value_heads=heads,
        key_size=size,
        value_size=size,
        width=config.integer("linear_conv_kernel_dim", least=2, most=8),
        epsilon=norm.epsilon,
        row_decays=True,
        rank=size,
        gate="sigmoid",
        are_convolutions_apart=True,
    )
    layers = [
        LayerSpec(
            attention=replace(attention, rope=None) if kind == "full_attention" else None,
            recurrence=delta if kind == "linear_attention" else None,
            feed_forward=read_feed_forward(config),
            attention_norm=norm,
            feed_forward_norm=norm,
        )
        for kind in _layer_types(config)
    ]
    return with_deepseek_experts(config, read_model(config, layers, ()))


def _layer_types(config: Config) -> list[str]:
    section = config.section("linear_attn_config")
    if "full_attn_layers" not in section:
        return layer_types(config, lambda index: index > 0 and index % 4 == 0, LINEAR_KINDS)
    full = set(section.integers("full_attn_layers"))  # counted from 1
    return layer_types(config, lambda index: index + 1 in full, LINEAR_KINDS)


def _complete(config: Config) -> Config:
    """Add the fields that llama.cpp's files have in other terms, or not at all."""
    # The keys of layers with latents are in tensors of another name.
    kinds = [LINEAR_KINDS[not has] for has in config.items("attention_layers", num_layers(config))]
    return complete_latent_attention(config).replaced(
        layer_types=kinds, linear_num_heads=config.integer("num_attention_heads")
    )


DELTA_PARTS = {
    "recurrence.query": "self_attn.q_proj",
    "recurrence.key": "self_attn.k_proj",
    "recurrence.value": "self_attn.v_proj",
    "recurrence.beta": "self_attn.b_proj",
    "recurrence.decay_down": "self_attn.f_a_proj",
    "recurrence.decay": "self_attn.f_b_proj",
    "recurrence.gate_down": "self_attn.g_a_proj",
    "recurrence.gate": "self_attn.g_b_proj",
    "recurrence.decay_scale": "self_attn.A_log",
    "recurrence.decay_bias": "self_attn.dt_bias",
    "recurrence.query_convolution": "self_attn.q_conv1d",
    "recurrence.key_convolution": "self_attn.k_conv1d",
    "recurrence.value_convolution": "self_attn.v_conv1d",
    "recurrence.norm": "self_attn.o_norm",
    "recurrence.output": "self_attn.o_proj",
}
"""The parts of a layer with delta attention, in the names of published files."""
_EXPERTS = "block_sparse_moe"
FAMILY = Family(
    architectures=("KimiLinearForCausalLM",),
    read=read,
    tensors=replace_names(
        LATENT_NAMES,
        parts=dict(LATENT_NAMES.parts)
        | DELTA_PARTS
        | {
            "feed_forward.router": f"{_EXPERTS}.gate",
            "feed_forward.correction": f"{_EXPERTS}.gate.e_score_correction",
            "feed_forward.experts.gate": f"{_EXPERTS}.experts.{{}}.w1",
            "feed_forward.experts.up": f"{_EXPERTS}.experts.{{}}.w3",
            "feed_forward.experts.down": f"{_EXPERTS}.experts.{{}}.w2",
            "feed_forward.shared.gate": f"{_EXPERTS}.shared_experts.gate_proj",
            "feed_forward.shared.up": f"{_EXPERTS}.shared_experts.up_proj",
            "feed_forward.shared.down": f"{_EXPERTS}.shared_experts.down_proj",
        },
        # transformers writes the dense layers, too, under the name of the experts.
        aliases=dict(LATENT_NAMES.aliases)
        | {f"mlp.{part}_proj": f"{_EXPERTS}.{part}_proj" for part in ("gate", "up", "down")},
        bare=frozenset({"self_attn.A_log", "self_attn.dt_bias", f"{_EXPERTS}.gate.e_score_correction"}),
        interleaved=False,
    ),
    gguf=GgufNames(
        architectures=("kimi-linear",),
        tensors=replace_names(
            GGUF_LATENT_NAMES,
            parts=dict(GGUF_LATENT_NAMES.parts)
            | {
                "recurrence.query": "attn_q",
                "recurrence.key": "attn_k",
                "recurrence.value": "attn_v",
                "recurrence.beta": "ssm_beta",
                "recurrence.decay_down": "ssm_f_a",
                "recurrence.decay": "ssm_f_b",
                "recurrence.gate_down": "ssm_g_a",
                "recurrence.gate": "ssm_g_b",
                "recurrence.decay_scale": "ssm_a",
                "recurrence.decay_bias": "ssm_dt.bias",
                "recurrence.query_convolution": "ssm_conv1d_q",
                "recurrence.key_convolution": "ssm_conv1d_k",
                "recurrence.value_convolution": "ssm_conv1d_v",
                "recurrence.norm": "ssm_norm",
                "recurrence.output": "attn_output",
            },
            bare=frozenset({"ssm_a", "ssm_dt.bias"}),
            interleaved=False,
        ),
        fields=GGUF_DEEPSEEK_EXPERTS
        | GGUF_LATENT_FIELDS
        | {"ssm.conv_kernel": "linear_conv_kernel_dim", "kda.head_dim": "linear_head_dim"},
        complete=_complete,
    ),
)
