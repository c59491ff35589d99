"""Gemma 3n (https://ai.google.dev/gemma/docs/gemma-3n): four residual streams of which a layer computes one (AltUp),
augmented residuals (LAuReL), per-layer inputs, sparse gates (Gaussian top-k), and last layers that read the keys and
values of earlier ones.

Of a model with images or sounds the text model is read, and the other tensors are skipped.
"""

from dataclasses import replace
from math import isfinite
from statistics import NormalDist

from pyllm.families.config import Config
from pyllm.families.family import (
    Family,
    GgufNames,
    kv_sources,
    layer_types,
    num_layers,
    read_activation,
    read_attention,
    read_feed_forward,
    read_model,
    read_norm,
)
from pyllm.families.gemma import PARTS
from pyllm.families.rope import read_rope
from pyllm.families.spec import LayerSpec, ModelSpec, PerLayerInputSpec, RopeSpec, StreamsSpec
from pyllm.families.tensor_names import GGUF_NAMES, GGUF_PARTS, GGUF_PER_LAYER_PARTS, HUGGINGFACE_NAMES, PER_LAYER_PARTS

# Defaults of Gemma3nTextConfig in transformers: files of models with images leave out fields that have these values.
_DEFAULTS = {
    "vocab_size": 262_400,
    "hidden_size": 2048,
    "intermediate_size": 16_384,
    "num_hidden_layers": 35,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 32_768,
    "sliding_window": 512,
    "tie_word_embeddings": True,
    "final_logit_softcapping": 30.0,
}
_FULL, _SLIDING = "full_attention", "sliding_attention"
_SPARSE_LAYERS, _SPARSITY = 10, 0.95


def read_gemma3n(config: Config) -> ModelSpec:
    """The model that a config.json of Gemma 3n describes; the text model if it is for images or sounds, too."""
    config = config.with_defaults(**_DEFAULTS)
    count, norm, bias = num_layers(config), read_norm(config), config.flag("attention_bias", False)
    types = layer_types(config, lambda index: (index + 1) % 5 != 0)
    sources = kv_sources(config, types, config.integer("num_kv_shared_layers", 15, least=0))
    size = config.value("intermediate_size")
    sizes = config.items("intermediate_size", count) if isinstance(size, list) else [size] * count
    layers = [
        LayerSpec(
            attention=read_attention(
                config,
                scale=1.0,
                rope=0 if kind == _FULL else 1,
                window=None if kind == _FULL else config.integer("sliding_window"),
                query_key_norm=norm,
                value_norm=None if source is not None else read_norm(config, weight=False),
                kv_source=source,
                bias=bias,
                output_bias=bias,
            ),
            feed_forward=read_feed_forward(config.replaced(intermediate_size=size), "hidden_activation", cutoff=cutoff),
            attention_norm=norm,
            attention_output_norm=norm,
            feed_forward_norm=norm,
            feed_forward_output_norm=norm,
        )
        for kind, source, size, cutoff in zip(types, sources, sizes, _cutoffs(config, count), strict=True)
    ]
    inputs = PerLayerInputSpec(
        size=config.integer("hidden_size_per_layer_input", 256),
        vocab_size=config.integer("vocab_size_per_layer_input", 262_144),
        activation=read_activation(config, "hidden_activation"),
        norm=norm,
    )
    count = config.integer("altup_num_inputs", 4, least=2)
    streams = StreamsSpec(
        count=count,
        active=config.integer("altup_active_idx", 0, least=0, most=count - 1),
        augmented_rank=config.integer("laurel_rank", 64),
        scaled=config.flag("altup_correct_scale", True),
        norm=norm,
    )
    return read_model(
        config,
        layers,
        [_rope(config, kind) for kind in (_FULL, _SLIDING)],
        max_position_embeddings=config.integer("max_position_embeddings"),
        embedding_scale=config.integer("hidden_size") ** 0.5,
        logit_soft_cap=config.optional_positive("final_logit_softcapping"),
        per_layer_input=inputs,
        streams=streams,
    )


def _rope(config: Config, kind: str) -> RopeSpec:
    """The rotation of layers of a type; in older files `rope_theta` is that of full attention."""
    if kind == _FULL:
        return read_rope(config, config.integer("head_dim"), theta=1_000_000.0, layer_type=kind)
    theta, plain = config.positive("rope_local_base_freq", 10_000.0), config.without("rope_scaling", "rope_theta")
    return read_rope(plain, config.integer("head_dim"), theta=theta, layer_type=kind)


def _complete(config: Config) -> Config:
    """Add the fields that llama.cpp has no keys for; its table has a row for each token."""
    return config.with_defaults(vocab_size_per_layer_input=config.integer("vocab_size"))


def _cutoffs(config: Config, count: int) -> list[float | None]:
    """The standard deviations above the mean at which each layer cuts off its gate, by the share that it drops."""
    if "gate_cutoffs" in config:
        found = config.items("gate_cutoffs", count)
        return [float(number) if isinstance(number, int | float) and isfinite(number) else None for number in found]
    name = "activation_sparsity_pattern"
    shares = [_SPARSITY] * min(count, _SPARSE_LAYERS) if count > _SPARSE_LAYERS else []
    shares += [0.0] * (count - len(shares))
    if name in config:
        shares = config.items(name, count)
    if any(isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1 for share in shares):
        raise config.error(name, shares, "a list of numbers from 0 to less than 1")
    return [NormalDist().inv_cdf(share) if share else None for share in shares]


_PARTS = (
    PARTS
    | PER_LAYER_PARTS
    | {
        "streams.predict": "altup.prediction_coefs",
        "streams.correct": "altup.correction_coefs",
        "streams.router": "altup.modality_router",
        "streams.router_norm": "altup.router_norm",
        "streams.scale": "altup.correct_output_scale",
        "augmented.left": "laurel.linear_left",
        "augmented.right": "laurel.linear_right",
        "augmented.norm": "laurel.post_laurel_norm",
    }
)
_GGUF_PARTS = (
    GGUF_PARTS
    | GGUF_PER_LAYER_PARTS
    | {
        "streams.predict": "altup_predict_coef",
        "streams.correct": "altup_correct_coef",
        "streams.router": "altup_router",
        "streams.router_norm": "altup_router_norm",
        "streams.scale": "altup_correct_scale",
        "augmented.left": "laurel_l",
        "augmented.right": "laurel_r",
        "augmented.norm": "laurel_post_norm",
    }
)
FAMILY = Family(
    architectures=("Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"),
    read=read_gemma3n,
    tensors=replace(HUGGINGFACE_NAMES, parts=_PARTS, bare=HUGGINGFACE_NAMES.bare | {_PARTS["streams.scale"]}),
    gguf=GgufNames(
        architectures=("gemma3n",),
        tensors=replace(GGUF_NAMES, parts=_GGUF_PARTS),
        fields={
            "activation_sparsity_scale": "gate_cutoffs",
            "altup.active_idx": "altup_active_idx",
            "altup.num_inputs": "altup_num_inputs",
            "attention.shared_kv_layers": "num_kv_shared_layers",
            "embedding_length_per_layer_input": "hidden_size_per_layer_input",
            "feed_forward_length": "intermediate_size",
        },
        complete=_complete,
    ),
)
