"""OLMo (arXiv 2402.00838): layer norms without weights; OLMo 2 (arXiv 2501.00656) and OLMo 3: post-norms only, and
query and key norms over all heads together; OLMoE (arXiv 2409.02060): experts, and pre-norms; FlexOlmo (arXiv
2507.07024): experts, and post-norms.
"""

from dataclasses import replace as replace_names

from msgspec.structs import replace

from pyllm.families.config import Config
from pyllm.families.family import (
    GGUF_EXPERTS,
    Family,
    GgufNames,
    layer_types,
    num_layers,
    read_attention,
    read_feed_forward,
    read_model,
    read_norm,
    read_routing,
    with_experts,
)
from pyllm.families.rope import read_rope
from pyllm.families.spec import LayerSpec, ModelSpec, NormSpec
from pyllm.families.tensor_names import GGUF_NAMES, POST_NORM_PARTS, TensorNames


def read_olmo(config: Config) -> ModelSpec:
    """The model that a config.json of OLMo describes."""
    bias, norm = config.flag("attention_bias", False), NormSpec(epsilon=1e-5, kind="layer", weight=False)
    layer = LayerSpec(
        attention=read_attention(config, bias=bias, output_bias=bias, clip=config.optional_positive("clip_qkv")),
        feed_forward=read_feed_forward(config),
        attention_norm=norm,
        feed_forward_norm=norm,
    )
    return read_model(config, [layer] * num_layers(config))


def read_olmo2(config: Config) -> ModelSpec:
    """The model that a config.json of OLMo 2 describes, or a GGUF file of OLMo 2 or 3: both have the name olmo2."""
    return _read(config, layer_types(config, lambda _: False))


def read_olmo3(config: Config) -> ModelSpec:
    """The model that a config.json of OLMo 3 describes."""
    config = config.with_defaults(rope_theta=500_000.0, sliding_window=4096)
    return _read(config, layer_types(config, lambda index: (index + 1) % 4 != 0))


def read_olmoe(config: Config) -> ModelSpec:
    """The model that a config.json of OLMoE describes."""
    config.refuse_unless(clip_qkv=None)
    config = config.with_defaults(rms_norm_eps=1e-5)
    bias, norm = config.flag("attention_bias", False), read_norm(config)
    layer = LayerSpec(
        attention=read_attention(config, bias=bias, output_bias=bias, query_key_norm=norm, norm_over="all"),
        feed_forward=read_feed_forward(config, routing=read_routing(config, config.flag("norm_topk_prob", False))),
        attention_norm=norm,
        feed_forward_norm=norm,
    )
    return read_model(config, [layer] * num_layers(config))


def read_flex_olmo(config: Config) -> ModelSpec:
    """The model that a config.json of FlexOlmo describes."""
    config = config.with_defaults(rope_theta=500_000.0, rms_norm_eps=1e-6)
    routing = read_routing(config, config.flag("norm_topk_prob", False))
    return with_experts(read_olmo2(config), routing, config.integer("intermediate_size"))


def _read(config: Config, types: list[str]) -> ModelSpec:
    """The model; RoPE scaling applies to full-attention layers only."""
    layers = _layers(config, types)
    head_size = layers[0].own_attention.head_size
    full = read_rope(config, head_size, layer_type="full_attention")
    local = read_rope(config.without("rope_scaling"), head_size, layer_type="sliding_attention")
    return read_model(config, layers, [full, local], max_position_embeddings=config.integer("max_position_embeddings"))


def _layers(config: Config, types: list[str]) -> list[LayerSpec]:
    bias, norm = config.flag("attention_bias", False), read_norm(config, epsilon=config.positive("rms_norm_eps", 1e-5))
    full = read_attention(config, bias=bias, output_bias=bias, query_key_norm=norm, norm_over="all")
    sliding = replace(full, window=config.optional_integer("sliding_window"), rope=1)
    return [
        LayerSpec(
            attention=sliding if kind == "sliding_attention" else full,
            feed_forward=read_feed_forward(config),
            attention_output_norm=norm,
            feed_forward_output_norm=norm,
        )
        for kind in types
    ]


OLMO = Family(
    architectures=("OlmoForCausalLM",),
    read=read_olmo,
    gguf=GgufNames(
        architectures=("olmo",),
        tensors=replace_names(GGUF_NAMES, interleaved=True),
        fields={"attention.clamp_kqv": "clip_qkv"},
    ),
)
OLMO2 = Family(
    architectures=("Olmo2ForCausalLM",),
    read=read_olmo2,
    tensors=TensorNames(parts=POST_NORM_PARTS),
    gguf=GgufNames(architectures=("olmo2",)),
)
OLMO3 = Family(architectures=("Olmo3ForCausalLM",), read=read_olmo3, tensors=TensorNames(parts=POST_NORM_PARTS))
OLMOE = Family(
    architectures=("OlmoeForCausalLM",),
    read=read_olmoe,
    gguf=GgufNames(architectures=("olmoe",), fields=GGUF_EXPERTS),
)
FLEX_OLMO = Family(
    architectures=("FlexOlmoForCausalLM",), read=read_flex_olmo, tensors=TensorNames(parts=POST_NORM_PARTS)
)
