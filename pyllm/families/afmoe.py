"""AFMoE (Trinity): gated attention, RoPE in layers with windows alone, pre- and post-norms, DeepSeek V3's experts."""

from dataclasses import replace as replace_names

from msgspec.structs import replace

from pyllm.families.config import Config
from pyllm.families.family import (
    GGUF_DEEPSEEK_EXPERTS,
    Family,
    GgufNames,
    layer_types,
    read_attention,
    read_deepseek_routing,
    read_feed_forward,
    read_model,
    read_norm,
    with_deepseek_experts,
)
from pyllm.families.spec import LayerSpec, ModelSpec
from pyllm.families.tensor_names import GGUF_NAMES, GGUF_PARTS, LLAMA_PARTS, TensorNames


def read(config: Config) -> ModelSpec:
    """The model that a config.json of Trinity describes; biases, and another score of experts, are refused."""
    config.refuse_unless(score_func="sigmoid", attention_bias=False)
    config = config.renamed(
        n_shared_experts="num_shared_experts",
        first_k_dense_replace="num_dense_layers",
        routed_scaling_factor="route_scale",
        norm_topk_prob="route_norm",
    )
    config = config.with_defaults(
        head_dim=128,
        moe_intermediate_size=1408,
        num_experts=64,
        num_experts_per_tok=6,
        n_shared_experts=2,
        first_k_dense_replace=1,
        rms_norm_eps=1e-5,
        sliding_window=1024,
    )
    norm = read_norm(config)
    full = read_attention(config, rope=None, query_key_norm=norm, output_gate=True)
    sliding = replace(full, rope=0, window=config.integer("sliding_window"))
    every = config.integer("global_attn_every_n_layers", 4)
    layers = [
        LayerSpec(
            attention=sliding if kind == "sliding_attention" else full,
            feed_forward=read_feed_forward(config),
            attention_norm=norm,
            attention_output_norm=norm,
            feed_forward_norm=norm,
            feed_forward_output_norm=norm,
        )
        for kind in layer_types(config, lambda index: (index + 1) % every != 0)
    ]
    scale = config.integer("hidden_size") ** 0.5 if config.flag("mup_enabled", False) else 1.0
    spec = read_model(config, layers, embedding_scale=scale)
    return with_deepseek_experts(config, spec, replace(read_deepseek_routing(config), float32=False))


_CORRECTION = "mlp.expert"  # and "_bias"
_PARTS = {
    "attention.gate": "self_attn.gate_proj",
    "attention_output_norm": "post_attention_layernorm",
    "feed_forward_norm": "pre_mlp_layernorm",
    "feed_forward_output_norm": "post_mlp_layernorm",
    "feed_forward.router": "mlp.router.gate",
    "feed_forward.correction": _CORRECTION,
}
FAMILY = Family(
    architectures=("AfmoeForCausalLM",),
    read=read,
    tensors=TensorNames(parts=LLAMA_PARTS | _PARTS, bare=frozenset({_CORRECTION})),
    gguf=GgufNames(
        architectures=("afmoe",),
        tensors=replace_names(GGUF_NAMES, parts=GGUF_PARTS | {"attention.gate": "attn_gate"}),
        fields=GGUF_DEEPSEEK_EXPERTS,
        complete=lambda config: config.replaced(mup_enabled=True),  # llama.cpp always scales the embedding.
    ),
)
