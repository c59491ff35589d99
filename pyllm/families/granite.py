"""Granite 3, dense and with experts: Llama with multipliers for embeddings, scores, residuals and logits; Granite 4,
which may have Mamba-2's layers in place of attention; Granite with windows, sinks and a base of RoPE for each layer;
HyperCLOVA X, with norms after attention and feed-forward, too; MiniCPM (arXiv 2404.06395), with other names.
"""

from dataclasses import replace as replace_names
from math import sqrt

from msgspec.structs import replace

from pyllm.families.config import Config
from pyllm.families.family import (
    GGUF_EXPERTS,
    LINEAR_KINDS,
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
from pyllm.families.rope import read_rope, rope_parameters, with_rope_parameters
from pyllm.families.spec import LayerSpec, ModelSpec, SharedExpertSpec
from pyllm.families.state_space import (
    ATTENTION_LAYERS,
    GGUF_STATE_SPACE,
    MAMBA_LAYERS,
    read_state_space,
    with_gguf_head_size,
    with_gguf_state_space,
    with_state_space,
)
from pyllm.families.tensor_names import EXPERTS, GATE_UP, GGUF_NAMES, GGUF_PARTS, LLAMA_PARTS, TensorNames


def read_granite(config: Config) -> ModelSpec:
    """The model that a config.json of Granite 3 describes."""
    bias, norm = config.flag("attention_bias", False), read_norm(config)
    rotates = config.text("position_embedding_type", "rope") == "rope"
    attention = read_attention(
        config,
        bias=bias,
        output_bias=bias,
        scale=config.positive("attention_multiplier", 1.0),
        rope=0 if rotates else None,
    )
    layer = LayerSpec(
        attention=attention,
        feed_forward=read_feed_forward(config, bias=config.flag("mlp_bias", False)),
        attention_norm=norm,
        feed_forward_norm=norm,
    )
    return read_model(
        config,
        [layer] * num_layers(config),
        embedding_scale=config.positive("embedding_multiplier", 1.0),
        residual_multiplier=config.positive("residual_multiplier", 1.0),
        logit_scale=1 / config.positive("logits_scaling", 1.0),
    )


def read_hyperclova(config: Config) -> ModelSpec:
    """The model that a config.json of HyperCLOVA X describes."""
    if "attention_multiplier" not in config:
        config = config.replaced(attention_multiplier=read_attention(config).scale)
    spec, norm = read_granite(config.without("logits_scaling")), None
    if config.flag("use_post_norm", True):
        norm = read_norm(config)
    layer = replace(spec.layers[0], attention_output_norm=norm, feed_forward_output_norm=norm)
    scale = config.positive("logits_scaling", 1.0)  # a factor here, and a divisor in Granite
    return replace(spec, layers=(layer,) * len(spec.layers), logit_scale=scale)


def read_minicpm(config: Config) -> ModelSpec:
    """The model that a config.json of MiniCPM 1, 2 or 4 describes; experts and sparse attention are refused."""
    config.refuse_unless(num_experts=0, sparse_config=None)
    hidden, depth = config.integer("hidden_size"), sqrt(num_layers(config))
    config = config.with_defaults(
        attention_multiplier=read_attention(config).scale,
        embedding_multiplier=config.positive("scale_emb", 12.0),
        residual_multiplier=config.positive("scale_depth", 1.4) / depth,
        logits_scaling=hidden / config.integer("dim_model_base", 256),
        tie_word_embeddings=True,
    )
    return read_granite(config)


def read_granite_swa(config: Config) -> ModelSpec:
    """The model that a config.json of Granite with windows describes, dense or with experts.

    A base of 0 means a layer without positions.
    """
    spec, window = read_granite(config), config.integer("sliding_window", 128)
    types, head_size = layer_types(config, lambda index: index % 4 != 0), spec.attention.head_size
    bases = [rope_parameters(config).positive("rope_theta", 10_000.0)] * len(types)
    if "layer_rope_theta" in config:
        bases = [
            Config({"layer_rope_theta": base}, config.place).number("layer_rope_theta")
            for base in config.items("layer_rope_theta", len(types))
        ]
    of_ropes = sorted({base for base in bases if base})
    layers = (
        replace(
            layer,
            attention=replace(
                spec.attention,
                sinks=True,
                window=window if kind == "sliding_attention" else None,
                rope=of_ropes.index(base) if base else None,
            ),
        )
        for layer, kind, base in zip(spec.layers, types, bases, strict=True)
    )
    ropes = (read_rope(with_rope_parameters(config, rope_theta=base), head_size) for base in of_ropes)
    spec = replace(spec, layers=tuple(layers), ropes=tuple(ropes))
    return _with_shared_expert(config, spec) if config.integer("num_local_experts", 0, least=0) else spec


def read_granite_moe(config: Config) -> ModelSpec:
    """The model that a config.json of Granite 3 with experts describes; a shared one may be beside them."""
    return _with_shared_expert(config, read_granite(config))


def _with_shared_expert(config: Config, spec: ModelSpec) -> ModelSpec:
    shared = config.integer("shared_intermediate_size", 0, least=0)
    routing = read_routing(config, normalised=True, shared=SharedExpertSpec(size=shared) if shared else None)
    return with_experts(spec, routing, config.integer("intermediate_size"))


def read_granite4(config: Config) -> ModelSpec:
    """The model that a config.json of Granite 4 describes: dense or with experts, with or without Mamba-2's layers."""
    size = config.integer("shared_intermediate_size", 1024)
    positions = config.text("position_embedding_type", "nope")
    dense = config.replaced(position_embedding_type=positions, intermediate_size=size, mlp_bias=False)
    if config.integer("num_local_experts", 8, least=0):
        shared = SharedExpertSpec(size=size)
        routing = read_routing(config.with_defaults(num_local_experts=8), normalised=True, shared=shared)
        spec = with_experts(read_granite(dense), routing, config.integer("intermediate_size"))
    else:
        spec = read_granite(dense)
    kinds = config.items("layer_types" if "layer_types" in config else "layers_block_type", num_layers(config))
    layers = (_with_mixer(config, layer, kind) for layer, kind in zip(spec.layers, kinds, strict=True))
    return replace(spec, layers=tuple(layers))


def _with_mixer(config: Config, layer: LayerSpec, kind: str) -> LayerSpec:
    """The layer with attention or with Mamba-2's state space, by its kind."""
    if kind in ATTENTION_LAYERS:
        return layer
    if kind not in MAMBA_LAYERS:  # a value of any JSON type
        raise config.error("layer_types", kind, f"a list of {', '.join(ATTENTION_LAYERS + MAMBA_LAYERS)}")
    return replace(layer, attention=None, recurrence=read_state_space(config, read_norm(config).epsilon))


def _complete(config: Config) -> Config:
    """Add the kind of positions, RoPE or none, from the flag in llama.cpp's files."""
    rotates = config.flag("rope_finetuned", True)
    return config.replaced(position_embedding_type="rope" if rotates else "nope")


def _complete_swa(config: Config) -> Config:
    """Add the base of each layer, which is the same in all that rotate."""
    count, base = num_layers(config), config.positive("rope_theta", 10_000.0)
    rotates = config.items("rope_pattern", count) if "rope_pattern" in config else [True] * count
    return _complete(config).replaced(layer_rope_theta=[base if each else 0 for each in rotates])


_GGUF_FIELDS = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
    "rope.scaling.finetuned": "rope_finetuned",
}
_SHARED_GATE_UP = ("feed_forward.shared.gate", "feed_forward.shared.up")
_EXPERT_PARTS = LLAMA_PARTS | {
    "feed_forward.router": "block_sparse_moe.router.layer",
    "feed_forward.experts.down": "block_sparse_moe.output_linear",
    "feed_forward.shared.down": "shared_mlp.output_linear",
}
_STACKED_EXPERTS = {
    "block_sparse_moe.input_linear": EXPERTS[:2],
    "shared_mlp.input_linear": _SHARED_GATE_UP,
}
GRANITE = Family(
    architectures=("GraniteForCausalLM",),
    read=read_granite,
    gguf=GgufNames(
        architectures=("granite",),
        tensors=replace_names(GGUF_NAMES, interleaved=True),
        fields=_GGUF_FIELDS,
        complete=_complete,
    ),
)
MINICPM = Family(
    architectures=("MiniCPMForCausalLM",),
    read=read_minicpm,
    gguf=GgufNames(
        architectures=("minicpm",), tensors=replace_names(GGUF_NAMES, interleaved=True), fields=_GGUF_FIELDS
    ),
)
GRANITE_SWA = Family(
    architectures=("GraniteSWAForCausalLM", "GraniteMoeSWAForCausalLM"),
    read=read_granite_swa,
    tensors=TensorNames(
        parts=LLAMA_PARTS
        | {
            "attention.sinks": "self_attn.sinks",
            "feed_forward.router": "block_sparse_moe.router",
            "feed_forward.experts.down": "block_sparse_moe.experts.{}.down_proj",
            "feed_forward.shared.down": "shared_mlp.output_linear",
        },
        bare=frozenset({"self_attn.sinks"}),
        stacked={"shared_mlp.input_linear": _SHARED_GATE_UP},
    ),
    gguf=GgufNames(
        architectures=("granite_swa",),
        tensors=replace_names(
            GGUF_NAMES,
            parts=GGUF_PARTS | {"attention.sinks": "attn_sinks"},
            stacked={"ffn_up_shexp": _SHARED_GATE_UP},
            interleaved=True,
        ),
        fields=_GGUF_FIELDS
        | GGUF_EXPERTS
        | {
            "attention.rope_pattern": "rope_pattern",
            "expert_shared_feed_forward_length": "shared_intermediate_size",
        },
        complete=_complete_swa,
    ),
)
HYPERCLOVA = Family(
    architectures=("HyperCLOVAXForCausalLM",),
    read=read_hyperclova,
    tensors=TensorNames(
        parts=LLAMA_PARTS | {"attention_output_norm": "post_norm1", "feed_forward_output_norm": "post_norm2"}
    ),
)
GRANITE_MOE = Family(
    architectures=("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"),
    read=read_granite_moe,
    tensors=TensorNames(parts=_EXPERT_PARTS, stacked=_STACKED_EXPERTS),
    gguf=GgufNames(
        architectures=("granitemoe",),
        tensors=replace_names(GGUF_NAMES, interleaved=True),
        fields=_GGUF_FIELDS | GGUF_EXPERTS | {"expert_shared_feed_forward_length": "shared_intermediate_size"},
        complete=_complete,
    ),
)
_DENSE = "shared_mlp.dense"  # A model without experts has its feed-forward layer under the name of the shared one.


def _complete_granite4(config: Config) -> Config:
    """Add the kind of each layer, and the fields that llama.cpp's files have in other terms."""
    layers = num_layers(config)
    kinds = [LINEAR_KINDS[attends] for attends in config.items("attention_layers", layers)]
    size = config.integer("shared_intermediate_size", config.integer("intermediate_size"))
    experts = config.integer("num_local_experts", 0, least=0)
    config = with_gguf_head_size(_complete(config))
    return config.replaced(layer_types=kinds, shared_intermediate_size=size, num_local_experts=experts)


GRANITE4 = Family(
    architectures=("GraniteMoeHybridForCausalLM",),
    read=read_granite4,
    tensors=with_state_space(
        TensorNames(
            parts=_EXPERT_PARTS | {"feed_forward.down": "shared_mlp.output_linear"},
            stacked=_STACKED_EXPERTS | {_DENSE: GATE_UP},
            aliases={_DENSE: "shared_mlp.input_linear"},
        ),
        "mamba",
    ),
    gguf=GgufNames(
        architectures=("granitehybrid",),
        tensors=with_gguf_state_space(replace_names(GGUF_NAMES, interleaved=True)),
        fields=_GGUF_FIELDS
        | GGUF_EXPERTS
        | GGUF_STATE_SPACE
        | {"expert_shared_feed_forward_length": "shared_intermediate_size"},
        complete=_complete_granite4,
    ),
)
