"""Cohere (Command R) and Cohere 2 (Command A, arXiv 2504.00698): parallel layers with one layer norm. In Cohere 2,
layers with windows have RoPE, and the others have no positions; it may have experts after some dense layers.
"""

from dataclasses import replace

from msgspec.structs import replace as replace_struct

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
from pyllm.families.spec import AttentionSpec, LayerSpec, ModelSpec, RoutingSpec, SharedExpertSpec
from pyllm.families.tensor_names import GGUF_NAMES, TensorNames


def read_cohere(config: Config) -> ModelSpec:
    """The model that a config.json of Cohere describes."""
    config = config.without("head_dim")
    return _read(config, [_attention(config)] * num_layers(config))


def read_cohere2(config: Config) -> ModelSpec:
    """The model that a config.json of Cohere 2 describes."""
    config = config.without("head_dim")
    full = replace_struct(_attention(config), rope=None)
    sliding = replace_struct(full, rope=0, window=config.integer("sliding_window", 4096))
    pattern = config.integer("sliding_window_pattern", 4)
    types = layer_types(config, lambda index: (index + 1) % pattern != 0)
    return _read(config, [sliding if kind == "sliding_attention" else full for kind in types])


def read_cohere2_moe(config: Config) -> ModelSpec:
    """The model that a config.json of Cohere 2 with experts describes; its first layers may be dense."""
    config.refuse_unless(expert_gating_func=GGUF_SCORES["sigmoid"])
    config = config.with_defaults(head_dim=128, num_experts=8, num_experts_per_tok=2, norm_topk_prob=True)
    first, pattern = config.integer("first_k_dense_replace", 0, least=0), config.integer("sliding_window_pattern", 4)
    of_dense = config.integer("prefix_dense_sliding_window_pattern", 1)

    def slides(index: int) -> bool:
        return (index + 1) % of_dense != 0 if index < first else (index - first + 1) % pattern != 0

    full = replace_struct(_attention(config), rope=None)
    sliding = replace_struct(full, rope=0, window=config.integer("sliding_window", 4096))
    size = config.integer("intermediate_size")
    dense = config.replaced(intermediate_size=config.integer("prefix_dense_intermediate_size", size))
    types = layer_types(config, slides)
    spec = _read(dense, [sliding if kind == "sliding_attention" else full for kind in types])
    routing = _routing(config, size)
    spec = with_deepseek_experts(config.replaced(moe_intermediate_size=size), spec, routing)
    if of_dense != 1:
        return spec
    # Dense layers have RoPE without a window, too.
    layers = (
        replace_struct(layer, attention=replace_struct(layer.own_attention, rope=0))
        if layer.feed_forward is not None and layer.feed_forward.routing is None
        else layer
        for layer in spec.layers
    )
    return replace_struct(spec, layers=tuple(layers))


def _routing(config: Config, size: int) -> RoutingSpec:
    scores = config.text("expert_selection_fn", "softmax")
    if scores not in {"softmax", "sigmoid"}:
        raise config.error("expert_selection_fn", scores, "softmax or sigmoid")
    is_normalised = scores == "softmax" or config.flag("norm_topk_prob")
    shared = config.integer("num_shared_experts", 0, least=0)
    if not shared:
        return read_routing(config, is_normalised, scores=scores)
    combination = config.text("shared_expert_combination_strategy", "average")
    if combination not in {"average", "sum"}:
        raise config.error("shared_expert_combination_strategy", combination, "average or sum")
    factor = 0.5 if combination == "average" else 1.0
    expert = SharedExpertSpec(size=shared * size, factor=factor)
    return read_routing(config, is_normalised, scores=scores, factor=factor, shared=expert)


def _attention(config: Config) -> AttentionSpec:
    config.refuse_unless(use_qk_norm=False)  # each head has a norm of its own
    bias = config.flag("attention_bias", False)
    return read_attention(config, bias=bias, output_bias=bias)


def _read(config: Config, attentions: list[AttentionSpec]) -> ModelSpec:
    config = config.with_defaults(tie_word_embeddings=True)
    norm = read_norm(config) if "rms_norm_eps" in config else read_norm(config, "layer_norm_eps", kind="layer")
    feed_forward = read_feed_forward(config)
    layers = [
        LayerSpec(attention=attention, feed_forward=feed_forward, attention_norm=norm, parallel=True)
        for attention in attentions
    ]
    return read_model(config, layers, logit_scale=config.positive("logit_scale", 0.0625))


COHERE = Family(
    architectures=("CohereForCausalLM",),
    read=read_cohere,
    tensors=TensorNames(interleaved=True),
    gguf=GgufNames(
        architectures=("command-r",),
        tensors=replace(GGUF_NAMES, interleaved=True),
        fields={"logit_scale": "logit_scale"},
    ),
)
COHERE2 = Family(
    architectures=("Cohere2ForCausalLM",),
    read=read_cohere2,
    tensors=TensorNames(interleaved=True),
    gguf=GgufNames(
        architectures=("cohere2",),
        tensors=replace(GGUF_NAMES, interleaved=True),
        fields={"logit_scale": "logit_scale"},
    ),
)
COHERE2_MOE = Family(
    architectures=("Cohere2MoeForCausalLM",),
    read=read_cohere2_moe,
    tensors=TensorNames(interleaved=True),
    gguf=GgufNames(
        architectures=("cohere2moe",),
        tensors=replace(GGUF_NAMES, interleaved=True),
        fields=GGUF_EXPERTS
        | {
            "logit_scale": "logit_scale",
            "feed_forward_length": "prefix_dense_intermediate_size",
            "expert_feed_forward_length": "intermediate_size",
            "expert_gating_func": "expert_gating_func",
            "expert_shared_count": "num_shared_experts",
            "expert_weights_norm": "norm_topk_prob",
            "leading_dense_block_count": "first_k_dense_replace",
        },
        complete=lambda config: config.replaced(expert_selection_fn="sigmoid"),
    ),
)
