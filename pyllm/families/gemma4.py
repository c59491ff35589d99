"""Gemma 4 (https://ai.google.dev/gemma/docs/core/model_card_4): windows with RoPE of their own, larger heads in
full-attention layers, norms of query, key and value, and a scale of each layer's output.

The small models have per-layer inputs, and their last layers read the keys and values of earlier ones. One model has
experts beside its feed-forward layers. Of a model with images or sounds the text model is read, and the other tensors
are skipped.
"""

from dataclasses import replace

from pyllm.errors import ConfigError
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
    read_routing,
)
from pyllm.families.gemma import PARTS
from pyllm.families.rope import read_rope
from pyllm.families.spec import AttentionSpec, LayerSpec, ModelSpec, PerLayerInputSpec
from pyllm.families.tensor_names import GGUF_NAMES, GGUF_PARTS, GGUF_PER_LAYER_PARTS, HUGGINGFACE_NAMES, PER_LAYER_PARTS

# Defaults of Gemma4TextConfig in transformers: files of models with images leave out fields that have these values.
_DEFAULTS = {
    "vocab_size": 262_144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131_072,
    "sliding_window": 512,
    "tie_word_embeddings": True,
}
_FULL_HEAD_SIZE = 512
_FULL_ROPE = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0}
_SLIDING_ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
_FULL, _SLIDING = "full_attention", "sliding_attention"


def read_gemma4(config: Config) -> ModelSpec:
    """The model that a config.json of Gemma 4 describes; the text model if it is for images or sounds, too."""
    config = config.with_defaults(**_DEFAULTS, vocab_size_per_layer_input=262_144)
    size = config.integer("hidden_size_per_layer_input", 256, least=0)
    inputs = None
    if size and "hidden_size_per_layer_input" not in config.nulls:
        activation = read_activation(config, "hidden_activation")
        vocab_size = config.integer("vocab_size_per_layer_input")
        inputs = PerLayerInputSpec(size=size, vocab_size=vocab_size, activation=activation, norm=read_norm(config))
    return _read(config, inputs, has_experts=config.flag("enable_moe_block", False))


def read_gemma4_unified(config: Config) -> ModelSpec:
    """The same for Gemma 4 without encoders of images and sounds, which has neither per-layer inputs nor experts."""
    defaults = _DEFAULTS | {"sliding_window": 1024, "max_position_embeddings": 262_144}
    return _read(config.with_defaults(**defaults), None, has_experts=False)


def _read(config: Config, inputs: PerLayerInputSpec | None, *, has_experts: bool) -> ModelSpec:
    if config.value("use_bidirectional_attention") != "vision":  # which does not concern texts
        config.refuse_unless(use_bidirectional_attention=None)
    types = layer_types(config, lambda index: (index + 1) % 6 != 0)
    types[-1] = _FULL
    if "rope_parameters" not in config:
        config = config.replaced(rope_parameters={_FULL: _FULL_ROPE, _SLIDING: _SLIDING_ROPE})
    attentions = _attentions(config, types)
    norm, size, experts = read_norm(config), config.integer("intermediate_size"), None
    wide = 2 if config.flag("use_double_wide_mlp", False) else 1
    if has_experts:
        routing = read_routing(config.renamed(num_experts_per_tok="top_k_experts"), True, expert_factors=True)
        experts = read_feed_forward(
            config, "hidden_activation", size=config.integer("moe_intermediate_size"), routing=routing
        )
    layers = [
        LayerSpec(
            attention=attention,
            feed_forward=read_feed_forward(
                config, "hidden_activation", size=size if attention.kv_source is None else size * wide
            ),
            attention_norm=norm,
            attention_output_norm=norm,
            feed_forward_norm=norm,
            feed_forward_output_norm=norm,
            experts=experts,
            experts_norm=norm if has_experts else None,
            # The router's norm has no weights, but a scale follows it.
            factors={"router_norm.weight": config.integer("hidden_size") ** -0.5} if has_experts else {},
        )
        for attention in attentions
    ]
    return read_model(
        config,
        layers,
        [
            read_rope(config, attentions[types.index(kind)].head_size, layer_type=kind)
            for kind in (_FULL, _SLIDING)
            if kind in types
        ],
        max_position_embeddings=config.integer("max_position_embeddings"),
        embedding_scale=config.integer("hidden_size") ** 0.5,
        logit_soft_cap=config.optional_positive("final_logit_softcapping"),
        per_layer_input=inputs,
        layer_scales=True,
    )


def _attentions(config: Config, types: list[str]) -> list[AttentionSpec]:
    """The attention of each layer, the last ones with the keys and values of the last layer of their type before."""
    norm, bias = read_norm(config), config.flag("attention_bias", False)
    sources = kv_sources(config, types, config.integer("num_kv_shared_layers", 0, least=0))
    shares_projection = config.flag("attention_k_eq_v", False)
    attentions = []
    for index, (kind, source) in enumerate(zip(types, sources, strict=True)):
        is_full = kind == _FULL
        attentions.append(
            read_attention(
                _with_heads_of_layer(config, index, is_full=is_full),
                scale=1.0,
                rope=0 if is_full else 1,
                window=None if is_full else config.integer("sliding_window"),
                query_key_norm=norm,
                value_norm=None if source is not None else read_norm(config, weight=False),
                values_are_keys=is_full and shares_projection and source is None,
                kv_source=source,
                bias=bias,
                output_bias=bias,
            )
        )
    return attentions


def _with_heads_of_layer(config: Config, index: int, *, is_full: bool) -> Config:
    """A copy with the heads of a layer: transformers 5.23 lists them, other files have those of full attention."""
    if "per_layer_config" in config:
        own = config.section("per_layer_config").section(str(index))
        return config.replaced(
            **{name: own.integer(name) for name in ("head_dim", "num_key_value_heads") if name in own}
        )
    if not is_full:
        return config
    heads = {"head_dim": config.integer("global_head_dim", _FULL_HEAD_SIZE)}
    if config.flag("attention_k_eq_v", False) and "num_global_key_value_heads" in config:
        heads["num_key_value_heads"] = config.integer("num_global_key_value_heads")
    return config.replaced(**heads)


def _complete(config: Config) -> Config:
    """Add the sections of config.json, whose numbers llama.cpp has for all layers."""
    count = num_layers(config)
    if "rope_scaling" not in config:
        raise ConfigError(f"{config.place} has no tensor rope_freqs.weight, which this architecture needs")
    types, own = config.items("layer_types", count), count - config.integer("num_kv_shared_layers", 0, least=0)
    sizes, kv_heads = (_of_layers(config, name) for name in ("feed_forward_sizes", "key_value_heads"))
    heads = {
        str(layer): {"num_key_value_heads": kv_heads[layer]}
        | ({"head_dim": config.integer("global_head_dim")} if kind == _FULL else {})
        for layer, kind in enumerate(types)
    }
    has_values = config.items("value_layers", count)
    ropes = {
        _FULL: config.section("rope_scaling").with_defaults(rope_theta=config.positive("rope_theta", 1_000_000.0)),
        _SLIDING: Config({"rope_theta": config.positive("rope_local_base_freq", 10_000.0)}),
    }
    experts = config.integer("num_experts", 0, least=0)
    return config.without("rope_scaling", "rope_theta", "partial_rotary_factor").replaced(
        intermediate_size=sizes[0],
        use_double_wide_mlp=sizes[-1] != sizes[0],
        per_layer_config=heads,
        attention_k_eq_v=not all(has_values[layer] for layer in range(own) if types[layer] == _FULL),
        rope_parameters={kind: {name: rope.value(name) for name in rope} for kind, rope in ropes.items()},
        vocab_size_per_layer_input=config.integer("vocab_size"),
        enable_moe_block=experts > 0,
    )


def _of_layers(config: Config, name: str) -> list[int]:
    """The numbers of a field for each layer; some files have one for all layers."""
    value = config.value(name)
    return config.integers(name) if isinstance(value, list) else [config.integer(name)] * num_layers(config)


_PARTS = (
    PARTS
    | PER_LAYER_PARTS
    | {
        "scale": "layer_scalar",
        "dense_norm": "post_feedforward_layernorm_1",
        "experts_norm": "pre_feedforward_layernorm_2",
        "experts_output_norm": "post_feedforward_layernorm_2",
        "router_norm": "router.scale",
        "feed_forward.router": "router.proj",
        "feed_forward.expert_factors": "router.per_expert_scale",
        "feed_forward.experts.gate": "experts.{}.gate_proj",
        "feed_forward.experts.up": "experts.{}.up_proj",
        "feed_forward.experts.down": "experts.{}.down_proj",
    }
)
_NAMES = replace(
    HUGGINGFACE_NAMES,
    parts=_PARTS,
    bare=HUGGINGFACE_NAMES.bare | {_PARTS["scale"], _PARTS["router_norm"], _PARTS["feed_forward.expert_factors"]},
)

_GGUF_PARTS = (
    GGUF_PARTS
    | GGUF_PER_LAYER_PARTS
    | {
        "scale": "layer_output_scale",
        "dense_norm": "post_ffw_norm_1",
        "experts_norm": "pre_ffw_norm_2",
        "experts_output_norm": "post_ffw_norm_2",
        "router_norm": "ffn_gate_inp.scale",
        "feed_forward.expert_factors": "ffn_down_exps.scale",
    }
)
_GGUF_NAMES = replace(
    GGUF_NAMES,
    parts=_GGUF_PARTS,
    bare=GGUF_NAMES.bare | {_GGUF_PARTS["router_norm"], _GGUF_PARTS["feed_forward.expert_factors"]},
)

GEMMA4 = Family(
    architectures=("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"),
    read=read_gemma4,
    tensors=_NAMES,
    gguf=GgufNames(
        architectures=("gemma4",),
        tensors=_GGUF_NAMES,
        fields={
            "attention.head_count_kv": "key_value_heads",
            "attention.key_length": "global_head_dim",
            "attention.key_length_swa": "head_dim",
            "attention.shared_kv_layers": "num_kv_shared_layers",
            "attention.value_length": "global_value_dim",
            "embedding_length_per_layer_input": "hidden_size_per_layer_input",
            "expert_count": "num_experts",
            "expert_feed_forward_length": "moe_intermediate_size",
            "expert_used_count": "top_k_experts",
            "feed_forward_length": "feed_forward_sizes",
        },
        complete=_complete,
    ),
)
GEMMA4_UNIFIED = Family(
    architectures=("Gemma4UnifiedForCausalLM", "Gemma4UnifiedForConditionalGeneration"),
    read=read_gemma4_unified,
    tensors=_NAMES,
)
