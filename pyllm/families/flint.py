"""Flint: experts chosen by sigmoids and one that every token goes through, sinks of heads, and RoPE in layers with
windows alone.
"""

from msgspec.structs import replace

from pyllm.families.config import Config
from pyllm.families.family import (
    Family,
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
from pyllm.families.spec import LayerSpec, ModelSpec, SharedExpertSpec
from pyllm.families.tensor_names import LLAMA_PARTS, TensorNames


def read(config: Config) -> ModelSpec:
    """The model that a config.json describes; some layers may be dense."""
    config = config.with_defaults(head_dim=128, norm_topk_prob=True, mlp_only_layers=[0, 1])
    norm, bias, count = read_norm(config), config.flag("attention_bias", False), num_layers(config)
    full = read_attention(config, rope=None, query_key_norm=norm, sinks=True, bias=bias, output_bias=bias)
    sliding = replace(full, rope=0, window=config.integer("sliding_window", 513))
    layers = [
        LayerSpec(
            attention=sliding if kind == "sliding_attention" else full,
            feed_forward=read_feed_forward(config),
            attention_norm=norm,
            feed_forward_norm=norm,
        )
        for kind in layer_types(config, lambda index: index > 1 and index % 4 != 1 and index != count - 1)
    ]
    routing = read_routing(
        config,
        config.flag("norm_topk_prob"),
        scores="sigmoid",
        float32=True,
        shared=SharedExpertSpec(size=config.integer("shared_expert_intermediate_size", 1024)),
    )
    step, dense = config.integer("decoder_sparse_step", 1), set(config.integers("mlp_only_layers"))
    size = config.integer("moe_intermediate_size", 512)
    spec = read_model(config, layers)
    return with_experts(spec, routing, size, lambda index: index not in dense and (index + 1) % step == 0)


FAMILY = Family(
    architectures=("FlintForCausalLM",),
    read=read,
    tensors=TensorNames(
        parts=LLAMA_PARTS | SHARED_EXPERT_PARTS | {"attention.sinks": "self_attn.sinks"},
        aliases={"self_attn.sinks": "self_attn.softmax_offset"},
        bare=frozenset({"self_attn.sinks", "self_attn.softmax_offset"}),
    ),
)
