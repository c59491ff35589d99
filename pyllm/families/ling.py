"""Ling (arXiv 2503.05139): Llama's attention, and experts as in DeepSeek MoE; Ling 2 (arXiv 2510.22115): norms of
heads, and experts as in DeepSeek V3; Ring-linear (arXiv 2510.19338): lightning attention in most layers; Ling 2.5: the
same beside latent attention.
"""

from collections.abc import Sequence
from dataclasses import replace as replace_names

from pyllm.families.config import Config
from pyllm.families.deepseek import read_moe
from pyllm.families.family import (
    GGUF_DEEPSEEK_EXPERTS,
    Family,
    GgufNames,
    alibi_slopes,
    num_layers,
    read_attention,
    read_feed_forward,
    read_model,
    read_norm,
    with_deepseek_experts,
    without_further_layers,
)
from pyllm.families.latents import LATENT_NAMES, read_latent_attention
from pyllm.families.rope import read_rope
from pyllm.families.spec import AttentionSpec, LayerSpec, LightningSpec, ModelSpec, NormSpec, RopeSpec
from pyllm.families.tensor_names import GGUF_NAMES, LLAMA_PARTS, QUERY_KEY_VALUE, TensorNames

_DEFAULTS = {
    "partial_rotary_factor": 0.5,
    "rope_theta": 600_000.0,
    "first_k_dense_replace": 0,
    "rms_norm_eps": 1e-6,
    "head_dim": 128,
}


def read_ling(config: Config) -> ModelSpec:
    """The model that a config.json of Ling 1 or 1.5 describes; a head that is normalised when it is read is refused."""
    config = config.renamed(n_shared_experts="num_shared_experts").with_defaults(norm_topk_prob=True)
    config.refuse_unless(use_bias=False, use_qkv_bias=False, norm_head=False, norm_softmax=False, multi_gate=False)
    return read_moe(config)


def read_ling_2(config: Config) -> ModelSpec:
    """The model that a config.json of Ling 2 describes."""
    config, norm, attention = _read_attention(config)
    layers = [_layer(config, norm, attention)] * num_layers(config)
    return with_deepseek_experts(config, read_model(config, layers))


def read_ring_linear(config: Config) -> ModelSpec:
    """The model that a config.json of Ring-linear describes."""
    config, norm, attention = _read_attention(config)
    rope = read_rope(config, attention.head_size)
    return _read_linear(config, norm, attention, [rope])


def read_ling_2_5(config: Config) -> ModelSpec:
    """The model that a config.json of Ling 2.5 describes; the partial rotation is that of lightning attention."""
    config, norm = _read(config), read_norm(config)
    attention, rope = read_latent_attention(config.without("partial_rotary_factor"))
    return _read_linear(config, norm, attention, [rope, read_rope(config, config.integer("head_dim"))])


def _read(config: Config) -> Config:
    """The configuration under the names that DeepSeek's has; what would change the answer is refused."""
    config = config.renamed(n_shared_experts="num_shared_experts").with_defaults(**_DEFAULTS)
    size = config.integer("moe_intermediate_size")
    config.refuse_unless(hidden_act="silu", use_bias=False, use_qkv_bias=False, use_rmsnorm=True, norm_head=False)
    config.refuse_unless(score_function="sigmoid", moe_router_enable_expert_bias=True)
    config.refuse_unless(linear_silu=False, use_linear_silu=False, linear_rope=True)
    config.refuse_unless(moe_shared_expert_intermediate_size=size)
    return config


def _read_attention(config: Config) -> tuple[Config, NormSpec, AttentionSpec]:
    config = _read(config)
    norm = read_norm(config)
    has_norm = config.flag("use_qk_norm", True)
    return config, norm, read_attention(config, query_key_norm=norm if has_norm else None)


def _read_linear(config: Config, norm: NormSpec, attention: AttentionSpec, ropes: Sequence[RopeSpec]) -> ModelSpec:
    """The model with lightning attention but in the last layer of each group, and in layers beyond whole groups."""
    size, count = config.integer("layer_group_size", 1), num_layers(config)
    layers = [
        _layer(config, norm, attention)
        if (index + 1) % size == 0 or index >= count // size * size
        else _layer(config, norm, recurrence=_lightning(config, norm, index, rope=len(ropes) - 1))
        for index in range(count)
    ]
    return with_deepseek_experts(config, read_model(config, layers, ropes))


def _layer(
    config: Config, norm: NormSpec, attention: AttentionSpec | None = None, recurrence: LightningSpec | None = None
) -> LayerSpec:
    return LayerSpec(
        attention=attention,
        recurrence=recurrence,
        feed_forward=read_feed_forward(config),
        attention_norm=norm,
        feed_forward_norm=norm,
    )


def _lightning(config: Config, norm: NormSpec, index: int, rope: int) -> LightningSpec:
    heads, size = config.integer("num_attention_heads"), config.integer("head_dim")
    groups = config.integer("group_norm_size", 1)
    if heads % groups:
        raise config.error("group_norm_size", groups, f"a divisor of num_attention_heads, {heads}")
    # As in the published code, the first layer has a factor above 1.
    factor = 1 - (index - 1) / max(1, num_layers(config) - 1) + 1e-5
    return LightningSpec(
        heads=heads,
        head_size=size,
        slopes=tuple(slope * factor for slope in alibi_slopes(heads)),
        epsilon=norm.epsilon,
        scale=size**-0.5,
        query_key_norm=norm if config.flag("use_qk_norm", True) else None,
        rope=rope,
        norm_groups=groups,
    )


_PREFIX = "attention"
_QKV = f"{_PREFIX}.query_key_value"
_LINEAR_QKV = f"{_PREFIX}.query_key_value of lightning attention"  # the same name, for other parts
LING_NAMES = TensorNames(
    embedding="word_embeddings",
    parts=LLAMA_PARTS
    | {
        "attention.query_norm": f"{_PREFIX}.query_layernorm",
        "attention.key_norm": f"{_PREFIX}.key_layernorm",
        "attention.output": f"{_PREFIX}.dense",
        "recurrence.query_norm": f"{_PREFIX}.query_layernorm",
        "recurrence.key_norm": f"{_PREFIX}.key_layernorm",
        "recurrence.gate": f"{_PREFIX}.g_proj",
        "recurrence.norm": f"{_PREFIX}.g_norm",
        "recurrence.output": f"{_PREFIX}.dense",
        "feed_forward.correction": "mlp.gate.expert",
    },
    stacked={_QKV: QUERY_KEY_VALUE, _LINEAR_QKV: ("recurrence.query", "recurrence.key", "recurrence.value")},
    aliases={_LINEAR_QKV: _QKV},
    bare=frozenset({"mlp.gate.expert"}),
)
"""The names of published files."""

LING_LATENT_PARTS = {
    part: name.replace("self_attn.", f"{_PREFIX}.").replace("o_proj", "dense")
    for part, name in LATENT_NAMES.parts.items()
    if part.startswith("attention.")
}
"""The names of parts with latent attention."""
LING = Family(
    architectures=("BailingMoeForCausalLM",),
    read=read_ling,
    tensors=LING_NAMES,
    gguf=GgufNames(
        architectures=("bailingmoe",),
        tensors=replace_names(GGUF_NAMES, interleaved=True),
        fields=GGUF_DEEPSEEK_EXPERTS,
    ),
)
LING_2 = Family(
    architectures=("BailingMoeV2ForCausalLM",),
    read=read_ling_2,
    tensors=LING_NAMES,
    gguf=GgufNames(
        architectures=("bailingmoe2",),
        tensors=replace_names(GGUF_NAMES, stacked={"attn_qkv": QUERY_KEY_VALUE}),
        fields=GGUF_DEEPSEEK_EXPERTS,
        complete=without_further_layers,
    ),
)
RING_LINEAR = Family(
    architectures=("BailingMoeLinearV2ForCausalLM", "BailingMoeLinearForCausalLM"),
    read=read_ring_linear,
    tensors=LING_NAMES,
)
LING_2_5 = Family(
    architectures=("BailingMoeV2_5ForCausalLM",),
    read=read_ling_2_5,
    tensors=replace_names(
        LING_NAMES,
        parts={**LING_NAMES.parts, **LING_LATENT_PARTS},
        stacked={
            f"{_PREFIX}.kv_b_proj": ("attention.key", "attention.value"),
            _QKV: ("recurrence.query", "recurrence.key", "recurrence.value"),
        },
        grouped=frozenset({f"{_PREFIX}.kv_b_proj"}),
        aliases={f"{_PREFIX}.q_b_proj": f"{_PREFIX}.q_proj"},
        interleaved=True,
    ),
)
