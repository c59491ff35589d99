"""LFM2 (arXiv 2511.23404), dense and with experts: short convolutions in most layers, attention in the others; LFM3:
the same with windows, norms after each part of a layer, and a gate of each attention head.
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
    read_model,
    read_norm,
    read_routing,
    with_experts,
)
from pyllm.families.rope import read_rope
from pyllm.families.spec import FeedForwardSpec, LayerSpec, ModelSpec, ShortConvolutionSpec
from pyllm.families.tensor_names import GGUF_NAMES, GGUF_PARTS, LLAMA_PARTS, TensorNames

_KINDS = ("conv", "full_attention")
_LFM3_ROPES = {
    "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}


def read_lfm2(config: Config) -> ModelSpec:
    """The model that a config.json of LFM2 describes."""
    norm = read_norm(config, "norm_eps")
    hidden, bias = config.integer("hidden_size"), config.flag("conv_bias", False)
    convolution = ShortConvolutionSpec(size=hidden, width=config.integer("conv_L_cache", 3, least=2, most=8), bias=bias)
    attention = read_attention(config, query_key_norm=norm)
    layers = [
        LayerSpec(
            attention=attention if kind == "full_attention" else None,
            recurrence=convolution if kind == "conv" else None,
            feed_forward=FeedForwardSpec(size=_feed_forward_size(config)),
            attention_norm=norm,
            feed_forward_norm=norm,
        )
        for kind in _layer_types(config)
    ]
    tied = config.flag("tie_word_embeddings", config.flag("tie_embedding", True))
    return read_model(config.with_defaults(rope_theta=1e6), layers, tie_word_embeddings=tied)


def read_lfm2_moe(config: Config) -> ModelSpec:
    """The model that a config.json of LFM2 with experts describes: the first layers are dense."""
    config.refuse_unless(expert_gating_func=GGUF_SCORES["sigmoid"])
    config = config.replaced(block_auto_adjust_ff_dim=False)
    first = config.integer("num_dense_layers", 2, least=0)
    routing = read_routing(
        config,
        config.flag("norm_topk_prob", True),
        scores="sigmoid",
        factor=config.positive("routed_scaling_factor", 1.0),
        correction=config.flag("use_expert_bias", True),
    )
    size = config.integer("moe_intermediate_size")
    return with_experts(read_lfm2(config), routing, size, lambda index: index >= first)


def read_lfm3(config: Config) -> ModelSpec:
    """The model that a config.json of LFM3 describes."""
    config = config.with_defaults(rope_parameters=_LFM3_ROPES, head_dim=128)
    norm, bias = read_norm(config, "norm_eps"), config.flag("attention_bias", False)
    has_gate = config.flag("use_attention_gate", True)
    if bias and has_gate:
        raise config.error("attention_bias", bias, "false in a model with use_attention_gate, which has no bias")
    after = norm if config.flag("use_sandwich_norm", True) else None
    full = read_attention(config, query_key_norm=norm, head_gate=has_gate, bias=bias, output_bias=bias)
    window = None if "sliding_window" in config.nulls else config.integer("sliding_window", 256)
    attentions = {"full_attention": full, "sliding_attention": replace_struct(full, rope=1, window=window)}
    convolution = ShortConvolutionSpec(
        size=config.integer("hidden_size"),
        width=config.integer("conv_L_cache", 7, least=2, most=8),
        bias=config.flag("conv_bias", False),
    )
    kinds = ("conv", *attentions)
    layers = [
        LayerSpec(
            attention=attentions.get(kind),
            recurrence=convolution if kind == "conv" else None,
            feed_forward=FeedForwardSpec(size=config.integer("intermediate_size")),
            attention_norm=norm,
            attention_output_norm=after,
            feed_forward_norm=norm,
            feed_forward_output_norm=after,
        )
        for kind in layer_types(config, lambda index: (2 * (index > 0), 0, 1, 0)[index % 4], kinds)
    ]
    ropes = [read_rope(config, full.head_size, layer_type=kind) for kind in attentions]
    return read_model(config, layers, ropes, tie_word_embeddings=config.flag("tie_word_embeddings", True))


def _layer_types(config: Config) -> list[str]:
    count = num_layers(config)
    full = set(config.integers("full_attn_idxs")) or set(range(count))
    return layer_types(config, full.__contains__, _KINDS)


def _feed_forward_size(config: Config) -> int:
    """The features of the feed-forward layers: two thirds of the given ones, rounded up, unless they are exact."""
    size = config.integer("block_ff_dim" if "block_ff_dim" in config else "intermediate_size")
    if not config.flag("block_auto_adjust_ff_dim", True):
        return size
    scaled = int(config.positive("block_ffn_dim_multiplier", 1.0) * (2 * size // 3))
    multiple = config.integer("block_multiple_of", 256)
    return -(-scaled // multiple) * multiple


def _complete(config: Config) -> Config:
    """Add the fields that llama.cpp's files do not have: the size of feed-forward layers is the exact one."""
    kinds = [_KINDS[has] for has in config.items("attention_layers", num_layers(config))]
    epsilon = config.positive("rms_norm_eps")
    return config.replaced(layer_types=kinds, norm_eps=epsilon, block_auto_adjust_ff_dim=False)


_INPUT_PARTS = ("recurrence.input_gate", "recurrence.output_gate", "recurrence.value")
_GGUF_TENSORS = replace(
    GGUF_NAMES,
    norm="token_embd_norm",
    parts=GGUF_PARTS | {"recurrence.convolution": "shortconv.conv", "recurrence.output": "shortconv.out_proj"},
    stacked={"shortconv.in_proj": _INPUT_PARTS},
)
_GGUF_FIELDS = {"shortconv.l_cache": "conv_L_cache"}
LFM2 = Family(
    architectures=("Lfm2ForCausalLM",),
    read=read_lfm2,
    tensors=TensorNames(
        norm="embedding_norm",
        parts=LLAMA_PARTS
        | {
            "attention_norm": "operator_norm",
            "attention.query_norm": "self_attn.q_layernorm",
            "attention.key_norm": "self_attn.k_layernorm",
            "attention.output": "self_attn.out_proj",
            "recurrence.convolution": "conv.conv",
            "recurrence.output": "conv.out_proj",
            "feed_forward_norm": "ffn_norm",
            "feed_forward.gate": "feed_forward.w1",
            "feed_forward.up": "feed_forward.w3",
            "feed_forward.down": "feed_forward.w2",
        },
        stacked={"conv.in_proj": _INPUT_PARTS},
    ),
    gguf=GgufNames(
        architectures=("lfm2",),
        tensors=_GGUF_TENSORS,
        fields=_GGUF_FIELDS,
        complete=_complete,
    ),
)
LFM3 = Family(
    architectures=("Lfm3ForCausalLM",),
    read=read_lfm3,
    tensors=replace(
        LFM2.tensors,
        parts={
            **LFM2.tensors.parts,
            **{f"attention.{name}": f"self_attn.{name[0]}_norm" for name in ("query_norm", "key_norm")},
            "attention.gate": "self_attn.gate_proj",
            "attention.output": "self_attn.o_proj",
            "attention_output_norm": "post_operator_norm",
            "feed_forward_output_norm": "post_ffn_norm",
        },
    ),
)
LFM2_MOE = Family(
    architectures=("Lfm2MoeForCausalLM",),
    read=read_lfm2_moe,
    tensors=replace(
        LFM2.tensors,
        parts={
            **LFM2.tensors.parts,
            "feed_forward.router": "feed_forward.gate",
            "feed_forward.correction": "feed_forward.expert",
            "feed_forward.experts.gate": "feed_forward.experts.{}.w1",
            "feed_forward.experts.up": "feed_forward.experts.{}.w3",
            "feed_forward.experts.down": "feed_forward.experts.{}.w2",
        },
        bare=frozenset({"feed_forward.expert"}),
    ),
    gguf=GgufNames(
        architectures=("lfm2moe",),
        tensors=_GGUF_TENSORS,
        fields=_GGUF_FIELDS
        | GGUF_EXPERTS
        | {
            "expert_feed_forward_length": "moe_intermediate_size",
            "expert_gating_func": "expert_gating_func",
            "leading_dense_block_count": "num_dense_layers",
        },
        complete=_complete,
    ),
)
