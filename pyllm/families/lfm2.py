"""LFM2 (arXiv 2511.23404): short convolutions between gates in most layers, attention with norms in the others."""

from dataclasses import replace

from pyllm.families.config import Config
from pyllm.families.family import Family, GgufNames, num_layers, read_attention, read_model, read_norm
from pyllm.families.spec import FeedForwardSpec, LayerSpec, ModelSpec, ShortConvolutionSpec
from pyllm.families.tensors import GGUF_NAMES, GGUF_PARTS, LLAMA_PARTS, TensorNames

_KINDS = ("conv", "full_attention")


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


def _layer_types(config: Config) -> list[str]:
    count = num_layers(config)
    if "layer_types" not in config:
        full = set(config.integers("full_attn_idxs")) or set(range(count))
        return ["full_attention" if index in full else "conv" for index in range(count)]
    types: list[str] = config.items("layer_types", count)
    for kind in types:
        if kind not in _KINDS:  # a value of any JSON type
            raise config.error("layer_types", kind, f"a list of {' and '.join(_KINDS)}")
    return types


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
FAMILY = Family(
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
        tensors=replace(
            GGUF_NAMES,
            norm="token_embd_norm",
            parts=GGUF_PARTS | {"recurrence.convolution": "shortconv.conv", "recurrence.output": "shortconv.out_proj"},
            stacked={"shortconv.in_proj": _INPUT_PARTS},
        ),
        fields={"shortconv.l_cache": "conv_L_cache"},
        complete=_complete,
    ),
)
