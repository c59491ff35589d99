"""DeepSeek V2 (arXiv 2405.04434), V3 and R1 (arXiv 2412.19437), Kimi K2 (arXiv 2507.20534), and Youtu without experts."""

from pyllm.families.config import Config
from pyllm.families.family import (
    Family,
    num_layers,
    read_deepseek_routing,
    read_feed_forward,
    read_model,
    read_norm,
    with_deepseek_experts,
)
from pyllm.families.latent_attention import LATENT_NAMES, read_latent_attention
from pyllm.families.spec import LayerSpec, ModelSpec

_LATENTS = {
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}


def read_dense(config: Config) -> ModelSpec:
    """The model with latent attention that a config.json describes, without its experts."""
    config = config.with_defaults(**_LATENTS)
    config.refuse_unless(rope_interleave=True, mlp_bias=False, moe_layer_freq=1)
    norm, (attention, rope) = read_norm(config), read_latent_attention(config)
    layer = LayerSpec(
        attention=attention, feed_forward=read_feed_forward(config), attention_norm=norm, feed_forward_norm=norm
    )
    return read_model(config, [layer] * num_layers(config), (rope,))


def _read_v2(config: Config) -> ModelSpec:
    config = config.with_defaults(
        n_routed_experts=64,
        n_shared_experts=2,
        moe_intermediate_size=1407,
        first_k_dense_replace=0,
        topk_method="greedy",
        norm_topk_prob=False,
    )
    config.refuse_unless(norm_topk_prob=False, scoring_func="softmax")
    match config.text("topk_method"):
        case "greedy":
            config = config.replaced(n_group=1, topk_group=1)
        case "group_limited_greedy":
            pass
        case method:
            raise config.error("topk_method", method, "greedy or group_limited_greedy")
    return with_deepseek_experts(config, read_dense(config), read_deepseek_routing(config, "softmax"))


def _read_v3(config: Config) -> ModelSpec:
    config = config.with_defaults(
        n_routed_experts=256,
        num_experts_per_tok=8,
        moe_intermediate_size=2048,
        n_group=8,
        topk_group=4,
        first_k_dense_replace=3,
        routed_scaling_factor=2.5,
    )
    config.refuse_unless(scoring_func="sigmoid", topk_method="noaux_tc")
    return with_deepseek_experts(config, read_dense(config))


def _read_youtu(config: Config) -> ModelSpec:
    return read_dense(config.with_defaults(tie_word_embeddings=True))


DEEPSEEK_V2 = Family(architectures=("DeepseekV2ForCausalLM",), read=_read_v2, tensors=LATENT_NAMES)
DEEPSEEK_V3 = Family(architectures=("DeepseekV3ForCausalLM",), read=_read_v3, tensors=LATENT_NAMES)
YOUTU = Family(architectures=("YoutuForCausalLM",), read=_read_youtu, tensors=LATENT_NAMES)
