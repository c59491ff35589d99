"""MiniMax-01 (arXiv 2501.08313) and MiniMax-M1: lightning attention in most layers, softmax attention in the others,
and experts; the residual stream is what the norms give.
"""

from dataclasses import replace as replace_names

from msgspec.structs import replace

from pyllm.families.config import Config
from pyllm.families.family import (
    GGUF_EXPERTS,
    LINEAR_KINDS,
    Family,
    GgufNames,
    alibi_slopes,
    layer_types,
    num_layers,
    read_attention,
    read_feed_forward,
    read_model,
    read_norm,
    read_routing,
)
from pyllm.families.minimax_m2 import FAMILY as MINIMAX_M2
from pyllm.families.rope import read_rope
from pyllm.families.spec import LayerSpec, LightningSpec, ModelSpec
from pyllm.families.tensor_names import GGUF_NAMES, GGUF_PARTS

_PUBLISHED = {"full_attn": "full_attention", "linear_attn": "linear_attention", "mlp": "mlp"}
_OTHER_NAMES = {
    f"{part}_{factor}_factor": f"layernorm_{own}_{factor}"
    for part, own in _PUBLISHED.items()
    for factor in ("alpha", "beta")
}
_NORM_EPSILON = 1e-6  # of the norm within lightning attention, whatever the other norms have


def read(config: Config) -> ModelSpec:
    """The model that a config.json of transformers or of the published files describes."""
    config = config.renamed(**_OTHER_NAMES).with_defaults(rms_norm_eps=1e-5)
    config.refuse_unless(hidden_act="silu", postnorm=True, shared_intermediate_size=0)
    norm, attention = read_norm(config), read_attention(config)
    # transformers rotates whole heads, whatever the published `rotary_dim` says.
    rotary_size = config.integer("rotary_dim", attention.head_size)
    config = config.with_defaults(partial_rotary_factor=rotary_size / attention.head_size)
    alphas, betas = (_factors(config, name) for name in ("alpha", "beta"))
    feed_forward = read_feed_forward(config, routing=read_routing(config, normalised=True))
    layers = [
        LayerSpec(
            attention=attention if kind == "full_attention" else None,
            recurrence=_lightning(config, index) if kind == "linear_attention" else None,
            feed_forward=feed_forward,
            # A factor of an output before a norm is a factor of the norm's epsilon.
            attention_norm=replace(norm, epsilon=norm.epsilon / betas["mlp"] ** 2) if index else norm,
            feed_forward_norm=replace(norm, epsilon=norm.epsilon / betas[kind] ** 2),
            post_norm_factor=alphas[kind] / betas[kind],
        )
        for index, kind in enumerate(_layer_types(config))
    ]
    return read_model(
        config,
        layers,
        [read_rope(config, attention.head_size, theta=1_000_000.0)],
        norm=replace(norm, epsilon=norm.epsilon / betas["mlp"] ** 2),
        residual_multiplier=alphas["mlp"] / betas["mlp"],
    )


def _factors(config: Config, name: str) -> dict[str, float]:
    """The factors of this name, by the kind of a layer or as that of feed-forward."""
    return {own: config.positive(f"{part}_{name}_factor", 1.0) for part, own in _PUBLISHED.items()}


def _lightning(config: Config, index: int) -> LightningSpec:
    heads, layers = config.integer("num_attention_heads"), num_layers(config)
    if heads & (heads - 1):
        raise config.error("num_attention_heads", heads, "a power of 2, for which the decays of heads are defined")
    factor = 1 - index / (layers - 1 + 1e-5) + 1e-5
    return LightningSpec(
        heads=heads,
        head_size=read_attention(config).head_size,
        slopes=tuple(slope * factor for slope in alibi_slopes(heads)),
        epsilon=_NORM_EPSILON,
        activated=True,
    )


def _layer_types(config: Config) -> list[str]:
    if "attn_type_list" in config and "layer_types" not in config:
        kinds = config.items("attn_type_list", num_layers(config))
        if any(kind not in (0, 1) for kind in kinds):
            raise config.error("attn_type_list", kinds, "a list of 0 and 1")
        config = config.replaced(layer_types=[LINEAR_KINDS[kind] for kind in kinds])
    return layer_types(config, lambda index: index % 2 == 0, LINEAR_KINDS)


def _complete(config: Config) -> Config:
    """Add the fields that llama.cpp's files have in other terms: one factor stands for all."""
    kinds = [LINEAR_KINDS[has] for has in config.items("attention_layers", num_layers(config))]
    alpha = config.positive("residual_scale")
    return config.replaced(layer_types=kinds, **{f"{part}_alpha_factor": alpha for part in _PUBLISHED})


_RECURRENCE = {
    "recurrence.gate": "self_attn.output_gate",
    "recurrence.norm": "self_attn.norm",
    "recurrence.output": "self_attn.out_proj",
}
_INPUTS = ("recurrence.query", "recurrence.key", "recurrence.value")
FAMILY = Family(
    architectures=("MiniMaxForCausalLM", "MiniMaxText01ForCausalLM", "MiniMaxM1ForCausalLM"),
    read=read,
    tensors=replace_names(
        MINIMAX_M2.tensors,
        parts={**MINIMAX_M2.tensors.parts, **_RECURRENCE},
        stacked={"self_attn.qkv_proj": _INPUTS},
        grouped=frozenset({"self_attn.qkv_proj"}),
        derived=(
            *MINIMAX_M2.tensors.derived,
            *(f".self_attn.{name}" for name in ("slope_rate", "query_decay", "key_decay", "diagonal_decay")),
        ),
    ),
    gguf=GgufNames(
        architectures=("minimax-01",),
        tensors=replace_names(
            GGUF_NAMES,
            parts=GGUF_PARTS
            | {
                "recurrence.gate": "attn_gate",
                "recurrence.norm": "attn_norm_2",
                "recurrence.output": "attn_output",
            },
            stacked={"attn_qkv": _INPUTS},
            grouped=frozenset({"attn_qkv"}),
        ),
        fields=GGUF_EXPERTS | {"residual_scale": "residual_scale", "expert_feed_forward_length": "intermediate_size"},
        complete=_complete,
    ),
)
