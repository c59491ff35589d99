"""Qwen 2 and 2.5 (arXiv 2407.10671): Llama with biases; Qwen 3 (arXiv 2505.09388): with norms of query and key, dense
or with experts.
"""

from msgspec.structs import replace

from pyllm.families.config import Config
from pyllm.families.family import (
    GGUF_EXPERTS,
    Family,
    GgufNames,
    layer_types,
    read_attention,
    read_feed_forward,
    read_model,
    read_norm,
    read_routing,
)
from pyllm.families.spec import AttentionSpec, LayerSpec, ModelSpec


def read_qwen2(config: Config) -> ModelSpec:
    """The model that a config.json of Qwen 2 or 2.5 describes."""
    return _read(config, read_attention(config, bias=True))


def read_qwen3(config: Config) -> ModelSpec:
    """The model that a config.json of Qwen 3 describes."""
    config = config.with_defaults(head_dim=128)
    bias = config.flag("attention_bias", False)
    attention = read_attention(config, bias=bias, output_bias=bias, query_key_norm=read_norm(config))
    return _read(config, attention)


def read_qwen3_moe(config: Config) -> ModelSpec:
    """The model that a config.json of Qwen 3 MoE describes; some layers may be dense."""
    spec = read_qwen3(config)
    routing = read_routing(config, config.flag("norm_topk_prob", False))
    step, without = config.integer("decoder_sparse_step", 1), set(config.integers("mlp_only_layers"))
    size = config.integer("moe_intermediate_size")
    layers = (
        layer
        if index in without or (index + 1) % step
        else replace(layer, feed_forward=replace(layer.feed_forward, size=size, routing=routing))
        for index, layer in enumerate(spec.layers)
    )
    return replace(spec, layers=tuple(layers))


def _read(config: Config, attention: AttentionSpec) -> ModelSpec:
    norm, window = read_norm(config), None
    if config.flag("use_sliding_window", False):
        window = config.optional_integer("sliding_window")
    first = config.integer("max_window_layers", 28, least=0)
    layers = [
        LayerSpec(
            attention=replace(attention, window=window if kind == "sliding_attention" else None),
            feed_forward=read_feed_forward(config),
            attention_norm=norm,
            feed_forward_norm=norm,
        )
        for kind in layer_types(config, lambda index: window is not None and index >= first)
    ]
    return read_model(config, layers)


QWEN2 = Family(architectures=("Qwen2ForCausalLM",), read=read_qwen2, gguf=GgufNames(architectures=("qwen2",)))
QWEN3 = Family(architectures=("Qwen3ForCausalLM",), read=read_qwen3, gguf=GgufNames(architectures=("qwen3",)))
QWEN3_MOE = Family(
    architectures=("Qwen3MoeForCausalLM",),
    read=read_qwen3_moe,
    gguf=GgufNames(
        architectures=("qwen3moe",),
        fields=GGUF_EXPERTS | {"expert_feed_forward_length": "moe_intermediate_size"},
        # GGUF files do not have this field; it is true in every released model.
        complete=lambda config: config.replaced(norm_topk_prob=True),
    ),
)
