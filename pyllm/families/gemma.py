"""Gemma (arXiv 2403.08295): scaled embeddings; Gemma 2 (arXiv 2408.00118) and Gemma 3 (arXiv 2503.19786): windows, pre-
and post-norms; VaultGemma (arXiv 2510.15001): Gemma 2 without post-norms.

Gemma 2 caps scores and logits; Gemma 3 normalises query and key, and uses another RoPE base in sliding-window layers.
EmbeddingGemma (arXiv 2509.20354) is Gemma 3 as an encoder. Of a Gemma 3 model with images the text model is read, and
the tensors for images are skipped.
"""

from msgspec.structs import replace as replace_struct

from pyllm.families.config import Config
from pyllm.families.family import (
    Family,
    GgufNames,
    layer_types,
    num_layers,
    read_attention,
    read_feed_forward,
    read_model,
    read_norm,
)
from pyllm.families.rope import read_rope
from pyllm.families.spec import AttentionSpec, LayerSpec, ModelSpec, RopeSpec
from pyllm.families.tensor_names import LLAMA_PARTS, TensorNames

_DEFAULTS = {"num_key_value_heads": 4, "head_dim": 256, "query_pre_attn_scalar": 256, "tie_word_embeddings": True}


def read_gemma(config: Config) -> ModelSpec:
    """The model that a config.json of Gemma describes."""
    config = config.with_defaults(head_dim=256, tie_word_embeddings=True, hidden_act="gelu_pytorch_tanh")
    if config.text("hidden_act") == "gelu":  # The first files mean the approximation.
        config = config.replaced(hidden_act="gelu_pytorch_tanh")
    config.refuse_unless(use_bidirectional_attention=False)
    bias, norm = config.flag("attention_bias", False), read_norm(config, unit_offset=True)
    layer = LayerSpec(
        attention=read_attention(config, bias=bias, output_bias=bias),
        feed_forward=read_feed_forward(config),
        attention_norm=norm,
        feed_forward_norm=norm,
    )
    layers = [layer] * num_layers(config)
    return read_model(config, layers, embedding_scale=config.integer("hidden_size") ** 0.5)


def read_vault_gemma(config: Config) -> ModelSpec:
    """The model that a config.json of VaultGemma describes."""
    spec = read_gemma2(config)
    layers = (replace_struct(layer, attention_output_norm=None, feed_forward_output_norm=None) for layer in spec.layers)
    return replace_struct(spec, layers=tuple(layers))


def read_gemma2(config: Config) -> ModelSpec:
    """The model that a config.json of Gemma 2 describes."""
    config = config.with_defaults(**_DEFAULTS, sliding_window=4096)
    config.refuse_unless(use_bidirectional_attention=False)
    attention = read_attention(config, soft_cap=_soft_cap(config, "attn_logit_softcapping", 50.0))
    types = layer_types(config, lambda index: index % 2 == 0)
    rope = read_rope(config, attention.head_size)
    return _read(config, attention, types, [rope], _soft_cap(config, "final_logit_softcapping", 30.0))


def read_gemma3(config: Config) -> ModelSpec:
    """The model that a config.json of Gemma 3 describes; the text model if it is for images, too.

    In EmbeddingGemma tokens attend to later ones: half of a window is before a token, half after it.
    """
    config = config.with_defaults(**_DEFAULTS, sliding_window=4096)
    bidirectional = config.flag("use_bidirectional_attention", False)
    if bidirectional:
        config = config.replaced(sliding_window=config.integer("sliding_window") // 2 + 1)
    norm = read_norm(config, unit_offset=True)
    cap = config.optional_positive("attn_logit_softcapping")
    attention = read_attention(config, soft_cap=cap, query_key_norm=norm, bidirectional=bidirectional)
    pattern = config.integer("sliding_window_pattern", 6)
    types = layer_types(config, lambda index: (index + 1) % pattern != 0)
    full = read_rope(config, attention.head_size, theta=1_000_000.0, layer_type="full_attention")
    return _read(
        config,
        attention,
        types,
        [full, _local_rope(config, attention)],
        config.optional_positive("final_logit_softcapping"),
    )


def _local_rope(config: Config, attention: AttentionSpec) -> RopeSpec:
    """The rotation of sliding-window layers; in older files rope_scaling applies to full-attention layers only."""
    theta = config.positive("rope_local_base_freq", 10_000.0)
    plain = config.without("rope_scaling", "rope_theta")
    return read_rope(plain, attention.head_size, theta=theta, layer_type="sliding_attention")


def _read(
    config: Config, attention: AttentionSpec, types: list[str], ropes: list[RopeSpec], logit_soft_cap: float | None
) -> ModelSpec:
    window, norm = config.integer("sliding_window"), read_norm(config, unit_offset=True)
    bias = config.flag("attention_bias", False)
    full = replace_struct(
        attention,
        scale=config.positive("query_pre_attn_scalar") ** -0.5,
        bias=bias,
        output_bias=bias,
    )
    sliding = replace_struct(full, window=window, rope=len(ropes) - 1)
    layers = [
        LayerSpec(
            attention=sliding if kind == "sliding_attention" else full,
            feed_forward=read_feed_forward(
                config.with_defaults(hidden_activation="gelu_pytorch_tanh"), "hidden_activation"
            ),
            attention_norm=norm,
            attention_output_norm=norm,
            feed_forward_norm=norm,
            feed_forward_output_norm=norm,
        )
        for kind in types
    ]
    return read_model(
        config,
        layers,
        ropes,
        max_position_embeddings=config.integer("max_position_embeddings"),
        embedding_scale=config.integer("hidden_size") ** 0.5,
        logit_soft_cap=logit_soft_cap,
    )


def _soft_cap(config: Config, name: str, default: float) -> float | None:
    """The soft cap; null means none, while an absent field means the default."""
    return config.positive(name, default) if name not in config.nulls else None


def _complete(config: Config) -> Config:
    """Add the attention scale that llama.cpp derives: from the head size; from the hidden size in the 27B models."""
    is_largest = (config.integer("num_hidden_layers"), config.integer("hidden_size")) in {(46, 4608), (62, 5376)}
    scalar = config.integer("head_dim")
    if is_largest:
        scalar = config.integer("hidden_size") // config.integer("num_attention_heads")
    return config.with_defaults(query_pre_attn_scalar=scalar)


PARTS = LLAMA_PARTS | {
    "attention_output_norm": "post_attention_layernorm",
    "feed_forward_norm": "pre_feedforward_layernorm",
    "feed_forward_output_norm": "post_feedforward_layernorm",
}
"""Names of a layer with norms before and after each part, for all Gemmas from 2 on."""

GEMMA = Family(architectures=("GemmaForCausalLM",), read=read_gemma, gguf=GgufNames(architectures=("gemma",)))
VAULT_GEMMA = Family(
    architectures=("VaultGemmaForCausalLM",),
    read=read_vault_gemma,
    tensors=TensorNames(parts=LLAMA_PARTS | {"feed_forward_norm": "pre_feedforward_layernorm"}),
)
GEMMA2 = Family(
    architectures=("Gemma2ForCausalLM",),
    read=read_gemma2,
    tensors=TensorNames(parts=PARTS),
    gguf=GgufNames(architectures=("gemma2",), complete=_complete),
)
GEMMA3 = Family(
    architectures=("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
    read=read_gemma3,
    tensors=TensorNames(parts=PARTS),
    gguf=GgufNames(architectures=("gemma3",), complete=_complete),
)
EMBEDDING_GEMMA = Family(
    architectures=("Gemma3TextModel",),
    read=read_gemma3,
    tensors=TensorNames(parts=PARTS),
    gguf=GgufNames(
        architectures=("gemma-embedding",),
        complete=lambda config: _complete(config.replaced(use_bidirectional_attention=True)),
    ),
)
