"""HunYuan 1, dense and with experts and a shared one: Llama with norms of query and key after the rotation; and
HunYuan 3: the attention of Qwen 3, and experts as in DeepSeek V3.
"""

from dataclasses import replace

from pyllm.families.config import Config
from pyllm.families.family import (
    GGUF_DEEPSEEK_EXPERTS,
    Family,
    GgufNames,
    num_layers,
    read_attention,
    read_feed_forward,
    read_model,
    read_norm,
    read_routing,
    with_deepseek_experts,
    with_experts,
    without_further_layers,
)
from pyllm.families.qwen import read_qwen3
from pyllm.families.rope import rope_parameters
from pyllm.families.spec import LayerSpec, ModelSpec, SharedExpertSpec
from pyllm.families.tensor_names import GGUF_NAMES, LLAMA_PARTS, TensorNames


def read_dense(config: Config) -> ModelSpec:
    """The model that a config.json of HunYuan without experts describes."""
    config.refuse_unless(use_qk_norm=True, use_cla=False)
    config = config.with_defaults(rms_norm_eps=1e-5)
    norm, bias = read_norm(config), config.flag("attention_bias", False)
    layer = LayerSpec(
        attention=read_attention(config, bias=bias, output_bias=bias, query_key_norm=norm, norm_after_rotation=True),
        feed_forward=read_feed_forward(config),
        attention_norm=norm,
        feed_forward_norm=norm,
    )
    return read_model(_with_stretched_base(config, layer.own_attention.head_size), [layer] * num_layers(config))


def read_moe(config: Config) -> ModelSpec:
    """The model that a config.json of HunYuan with experts describes; all layers have as many, of one size."""
    size = config.integer("intermediate_size")
    config = _with_one_of_each_layer(config, "num_experts", "moe_topk", "moe_intermediate_size", "num_shared_expert")
    config.refuse_unless(moe_intermediate_size=size, num_shared_expert=1, group_limited_greedy=False)
    routing = read_routing(
        config.replaced(num_experts_per_tok=config.integer("moe_topk", 1)),
        normalised=True,
        float32=True,
        shared=SharedExpertSpec(size=size),
    )
    return with_experts(read_dense(config), routing, size)


def read_hy_v3(config: Config) -> ModelSpec:
    """The model that a config.json of HunYuan 3 describes."""
    config.refuse_unless(mlp_bias=False)
    config = config.with_defaults(rms_norm_eps=1e-5, rope_theta=11_158_840.0, first_k_dense_replace=1).replaced(
        n_shared_experts=config.integer("num_shared_experts", 1),
        routed_scaling_factor=config.positive("router_scaling_factor", 2.826),
    )
    return with_deepseek_experts(config, read_qwen3(config))


def _complete_hy_v3(config: Config) -> Config:
    """The fields that GGUF files of HunYuan 3 have in other terms."""
    config = without_further_layers(config)
    kinds = [("dense", "sparse")[has] for has in config.items("expert_layers", num_layers(config))]
    shared = config.integer("shared_expert_intermediate_size") // config.integer("moe_intermediate_size")
    return config.replaced(mlp_layer_types=kinds, num_shared_experts=shared)


def _with_one_of_each_layer(config: Config, *names: str) -> Config:
    """The one number in place of a list of equal numbers, one for each layer."""
    for name in names:
        numbers = config.integers(name) if isinstance(config.value(name), list) else []
        if len(set(numbers)) > 1:
            raise config.error(name, numbers, "the same number for each layer")
        if numbers:
            config = config.replaced(**{name: numbers[0]})
    return config


def _with_stretched_base(config: Config, head_size: int) -> Config:
    """Without the `alpha` of dynamic RoPE, which raises the base for every context."""
    parameters = rope_parameters(config)
    if "alpha" not in parameters:
        return config
    theta = parameters.positive("rope_theta", config.positive("rope_theta", 10_000.0))
    theta *= parameters.positive("alpha") ** (head_size / (head_size - 2))
    return config.without("rope_scaling").replaced(rope_parameters={"rope_type": "default", "rope_theta": theta})


_PARTS = LLAMA_PARTS | {
    "attention.query_norm": "self_attn.query_layernorm",
    "attention.key_norm": "self_attn.key_layernorm",
    "feed_forward.router": "mlp.gate.wg",
    "feed_forward.shared.gate": "mlp.shared_mlp.gate_proj",
    "feed_forward.shared.up": "mlp.shared_mlp.up_proj",
    "feed_forward.shared.down": "mlp.shared_mlp.down_proj",
}
_CORRECTION = "mlp.expert"
HY_V3 = Family(
    architectures=("HYV3ForCausalLM",),
    read=read_hy_v3,
    tensors=TensorNames(
        parts=LLAMA_PARTS
        | {
            "feed_forward.router": "mlp.router.gate",
            "feed_forward.correction": _CORRECTION,
            "feed_forward.shared.gate": "mlp.shared_mlp.gate_proj",
            "feed_forward.shared.up": "mlp.shared_mlp.up_proj",
            "feed_forward.shared.down": "mlp.shared_mlp.down_proj",
        },
        bare=frozenset({_CORRECTION}),
    ),
    gguf=GgufNames(
        architectures=("hy_v3",),
        tensors=replace(GGUF_NAMES, aliases={"exp_probs_b.bias": "exp_probs_b"}),
        fields=GGUF_DEEPSEEK_EXPERTS
        | {
            "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
            "expert_weights_scale": "router_scaling_factor",
        },
        complete=_complete_hy_v3,
    ),
)
HUNYUAN = Family(
    architectures=("HunYuanDenseV1ForCausalLM",),
    read=read_dense,
    tensors=TensorNames(parts=_PARTS),
    gguf=GgufNames(architectures=("hunyuan-dense",)),
)
HUNYUAN_MOE = Family(
    architectures=("HunYuanMoEV1ForCausalLM",),
    read=read_moe,
    tensors=TensorNames(parts=_PARTS),
    gguf=GgufNames(
        architectures=("hunyuan-moe",),
        fields={
            "expert_count": "num_experts",
            "expert_used_count": "moe_topk",
            "expert_feed_forward_length": "moe_intermediate_size",
            "expert_shared_feed_forward_length": "intermediate_size",
            "expert_shared_count": "num_shared_expert",
        },
    ),
)
